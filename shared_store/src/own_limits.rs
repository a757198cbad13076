//! Lists limits of their own: a script on each server looks for them in the values of counters.

use std::{collections::BTreeMap, sync::LazyLock};

use redis::{
    Cmd, ErrorKind, RedisError, RedisResult, Script, Value,
    cluster_routing::{Route, SingleNodeRoutingInfo, SlotAddr},
    cmd, from_redis_value,
};
use tollgate_counter::time::Timestamp;
use tollgate_store::{OWN_LIMIT_TAG, OwnLimitPage, OwnLimitPosition, read_own_limit};
use tracing::warn;

use crate::{StoreParts, connection::StoreConnection, failure::within, value::VERSION};

/// Takes a step of a scan, and returns the cursor after it, and the names with limits of their own that it finds, each
/// before its limit. The arguments are the cursor, the pattern of names, about how many names are looked at, the version
/// of values, and the tag of limits of their own. A value is a version and records: a tag, a length of 7 bits in each
/// byte, and fields.
const SOURCE: &str = r"
local found = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local version, own = tonumber(ARGV[4]), tonumber(ARGV[5])
local limits = {}
for _, name in ipairs(found[2]) do
  local value = redis.pcall('GET', name)
  if type(value) ~= 'string' then value = '' end
  local at = 1
  if string.byte(value) == 2 and #value > 17 then at = 18 end
  if string.byte(value, at) == version then
    at = at + 1
    while at <= #value do
      local tag, length, factor = string.byte(value, at), 0, 1
      repeat
        at = at + 1
        local byte = string.byte(value, at) or 0
        length, factor = length + byte % 128 * factor, factor * 128
      until byte < 128
      if tag == own then
        limits[#limits + 1] = name
        limits[#limits + 1] = string.sub(value, at + 1, at + length)
      end
      at = at + length + 1
    end
  end
end
return {found[1], limits}
";

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(SOURCE));

impl StoreParts {
    /// The limits of their own that one step of a scan of about `most` counters finds.
    pub(super) async fn own_limits(
        &self,
        after: Option<OwnLimitPosition>,
        most: usize,
    ) -> Option<OwnLimitPage> {
        let (server, cursor) = after.map_or((0, 0), OwnLimitPosition::server_and_cursor);
        let (mut connection, _) = self.lanes.links[0].connection(self.settings.timeout).await?;
        let listed = within(self.settings.timeout, async {
            let step = self.step(cursor, most);
            // The server that has this hash slot.
            let to = SingleNodeRoutingInfo::SpecificNode(Route::new(server, SlotAddr::Master));
            let found = connection.call(&Some(to), (SCRIPT.get_hash(), SOURCE), step).await?;
            let (cursor, records): (u64, Vec<Vec<u8>>) = from_redis_value(found).map_err(|_| unexpected())?;
            let next = match cursor {
                0 => connection.server_after(server).await?.map(|server| (server, 0)),
                cursor => Some((server, cursor)),
            };
            Ok((next, records))
        });
        let (next, records) =
            listed.await.inspect_err(|error| warn!(%error, "cannot list limits of their own")).ok()?;
        let now: Timestamp = self.clocks.now()?.server.now;
        let limit =
            |[name, fields]: &[Vec<u8>; 2]| Some((self.settings.key_of(name)?, read_own_limit(fields, now)?));
        Some(OwnLimitPage {
            limits: records.as_chunks().0.iter().filter_map(limit).collect(),
            next: next.map(|(server, cursor)| OwnLimitPosition::at_cursor(server, cursor)),
        })
    }

    /// The call of the script, by its hash or its source.
    fn step(&self, cursor: u64, most: usize) -> impl Fn(&str, &str) -> Cmd {
        let names = self.settings.names();
        move |command, script| {
            let mut call = cmd(command);
            call.arg(script).arg(0).arg(cursor).arg(&names).arg(most).arg(VERSION).arg(OWN_LIMIT_TAG);
            call
        }
    }
}

impl StoreConnection {
    /// The first hash slot of the server after that of `slot`, in the order of their first hash slots.
    async fn server_after(&mut self, slot: u16) -> RedisResult<Option<u16>> {
        let Self::Cluster(_) = self else { return Ok(None) };
        let mut slots = cmd("CLUSTER");
        slots.arg("SLOTS");
        let answer = self.send(&Some(SingleNodeRoutingInfo::RandomPrimary), slots).await?;
        let ranges: Vec<Vec<Value>> = from_redis_value(answer).map_err(|_| unexpected())?;
        let mut firsts: BTreeMap<String, u16> = BTreeMap::new();
        for range in ranges {
            let [Value::Int(start), _, master, ..] = &range[..] else { return Err(unexpected()) };
            let start = u16::try_from(*start).map_err(|_| unexpected())?;
            let first = firsts.entry(format!("{master:?}")).or_insert(start);
            *first = start.min(*first);
        }
        Ok(firsts.into_values().filter(|first| slot < *first).min())
    }
}

fn unexpected() -> RedisError {
    (ErrorKind::UnexpectedReturnType, "the answer is not one of this command").into()
}
