//! The one script that changes counters, its arguments and its answer.

use std::sync::LazyLock;

use redis::{Value, from_redis_value};
use tollgate_counter::time::Timestamp;

/// Compares and sets groups of keys, each group as a whole.
///
/// For each group the arguments are: its number of keys, the duration of a claim in ms (0 for none), the mark of the
/// claim, and the channel on which its changes are announced (empty: none). For each key of the group follow its
/// expected value (empty: none), its new value (empty: none), and the expiry of the new value in ms (empty: leave the
/// key as it is). The answer is the time, and an array with 1, or an array of its values, for each group.
///
/// A group that asks for a claim and fails marks the values that differ: with the mark and the instant until which the
/// claim holds. A marked value equals no value that other replicas expect, so they read the claim and wait.
pub(super) const SOURCE: &str = r"
local time = redis.call('TIME')
local seconds, micros, reply = tonumber(time[1]), tonumber(time[2]), {}
if #KEYS == 0 then return {seconds, micros, reply} end
local stored = redis.call('MGET', unpack(KEYS))
local key, arg = 0, 1
while arg <= #ARGV do
  local count, claim_ms, mark = tonumber(ARGV[arg]), tonumber(ARGV[arg + 1]), ARGV[arg + 2]
  local channel, first, equal = ARGV[arg + 3], arg + 4, true
  for i = 0, count - 1 do
    if (stored[key + i + 1] or '') ~= ARGV[first + 3 * i] then equal = false break end
  end
  if equal then
    for i = 0, count - 1 do
      local expiry = ARGV[first + 3 * i + 2]
      if expiry ~= '' then
        local value = ARGV[first + 3 * i + 1]
        if value == '' then
          redis.call('DEL', KEYS[key + i + 1])
        else
          redis.call('SET', KEYS[key + i + 1], value, 'PX', expiry)
        end
        if channel ~= '' then redis.call('PUBLISH', channel, KEYS[key + i + 1]) end
      end
    end
    reply[#reply + 1] = 1
  else
    local now, values = seconds * 1000000 + micros, {}
    for i = 0, count - 1 do
      local value = stored[key + i + 1]
      if value and claim_ms > 0 and value ~= ARGV[first + 3 * i] then
        local free = true
        if string.byte(value) == 2 and #value > 17 then
          local until_us = 0
          for byte = 17, 10, -1 do until_us = until_us * 256 + string.byte(value, byte) end
          free = until_us <= now
          if free then value = string.sub(value, 18) end
        end
        if free then
          local until_us, bytes = now + claim_ms * 1000, {}
          for byte = 1, 8 do
            bytes[byte] = string.char(until_us % 256)
            until_us = math.floor(until_us / 256)
          end
          value = mark .. table.concat(bytes) .. value
          redis.call('SET', KEYS[key + i + 1], value, 'KEEPTTL')
        end
      end
      values[i + 1] = value
    end
    reply[#reply + 1] = values
  end
  key, arg = key + count, first + 3 * count
end
return {seconds, micros, reply}
";

pub(super) static SCRIPT: LazyLock<redis::Script> = LazyLock::new(|| redis::Script::new(SOURCE));

/// A claim, if the values differ.
#[derive(Clone, Copy, Debug)]
pub(super) struct ClaimTerms {
    /// The number of this replica.
    pub(super) replica: u64,
    /// How long the claim holds, in milliseconds.
    pub(super) millis: u64,
}

/// The answer of the script.
#[derive(Debug)]
pub(super) struct ScriptReply {
    /// The clock of the server.
    pub(super) time: Timestamp,
    /// What became of each group.
    pub(super) groups: Vec<KeyGroupReply>,
}

/// What became of a group.
#[derive(Debug)]
pub(super) enum KeyGroupReply {
    /// All its keys had the expected values, and have the new ones.
    Applied,
    /// Nothing was set. The values of its keys; empty if there is none.
    Differs(Vec<Vec<u8>>),
}

/// Reads the answer about so many groups; `None` if it is not one of this script.
pub(super) fn read(value: Value, groups_len: usize) -> Option<ScriptReply> {
    let (seconds, micros, groups): (i64, i64, Vec<Value>) = from_redis_value(value).ok()?;
    let groups = groups.into_iter().map(group_reply).collect::<Option<Vec<KeyGroupReply>>>()?;
    (groups.len() == groups_len).then_some(ScriptReply { time: time(seconds, micros)?, groups })
}

/// The instant of an answer to `TIME`: seconds and microseconds.
pub(super) fn time(seconds: i64, micros: i64) -> Option<Timestamp> {
    let nanos = u64::try_from(seconds).ok()?.checked_mul(1_000_000_000)?;
    Some(Timestamp::from_nanos(nanos.checked_add(u64::try_from(micros).ok()?.checked_mul(1_000)?)?))
}

fn group_reply(value: Value) -> Option<KeyGroupReply> {
    match value {
        Value::Int(1) => Some(KeyGroupReply::Applied),
        values => from_redis_value(values).ok().map(KeyGroupReply::Differs),
    }
}
