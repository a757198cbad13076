//! What a replica and the store tell each other every second: the secret of the key hash, that the replica uses the
//! store, and the time.

use std::sync::LazyLock;

use redis::{Cmd, Value};

use crate::{descriptor::Secret, shared_store::script, time::Timestamp};

/// A replica that has not greeted the store for so long does not count, in milliseconds.
const ABSENT_AFTER: u64 = 5_000;

/// Creates the secret if there is none, notes the replica, and forgets absent ones, also those of a clock that was
/// ahead.
const SOURCE: &str = r"
local time = redis.call('TIME')
local now, absent_after = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[3])
local created = redis.call('SET', KEYS[1], ARGV[1], 'NX')
redis.call('ZADD', KEYS[2], now, ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - absent_after)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '(' .. now, '+inf')
redis.call('PEXPIRE', KEYS[2], absent_after)
return {tonumber(time[1]), tonumber(time[2]), redis.call('GET', KEYS[1]), redis.call('ZCARD', KEYS[2]),
        created and 1 or 0}
";

static SCRIPT: LazyLock<redis::Script> = LazyLock::new(|| redis::Script::new(SOURCE));

/// What the store says.
#[derive(Debug)]
pub(super) struct Greeting {
    /// The clock of the server.
    pub(super) time: Timestamp,
    /// The secret of the key hash.
    pub(super) secret: Secret,
    /// The replicas that use the store.
    pub(super) replicas: u32,
    /// Whether the store had no secret, and has that of this replica now.
    pub(super) is_created: bool,
}

/// The hash of the script, and its source.
pub(super) fn script() -> (&'static str, &'static str) {
    (SCRIPT.get_hash(), SOURCE)
}

/// The command that greets the store: `secret` is created if it has none.
pub(super) fn call(command: &str, script: &str, prefix: &str, secret: &Secret, replica: u64) -> Cmd {
    let mut cmd = Cmd::new();
    // In a cluster both keys are on one server, because of the braces.
    cmd.arg(command).arg(script).arg(2);
    cmd.arg(format!("{prefix}{{replicas}}:secret")).arg(format!("{prefix}{{replicas}}:seen"));
    cmd.arg(&secret.to_bytes()).arg(format!("{replica:016x}")).arg(ABSENT_AFTER);
    cmd
}

/// Reads the answer; `None` if it is not one of this script.
pub(super) fn read(value: &Value) -> Option<Greeting> {
    let Value::Array(items) = value else { return None };
    let [seconds, micros, Value::BulkString(secret), Value::Int(replicas), Value::Int(created)] = &items[..]
    else {
        return None;
    };
    Some(Greeting {
        time: script::time(seconds, micros)?,
        secret: Secret::from_bytes(secret.as_slice().try_into().ok()?),
        replicas: u32::try_from(*replicas).ok()?,
        is_created: *created == 1,
    })
}
