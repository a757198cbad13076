//! What replicas and the store tell each other. Every second: the secret of the key hash, that the replica uses the store,
//! and the time. At once: announcements of refunds and resets, which may end refusals.

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use redis::{Cmd, RedisResult, Value};
use tokio::sync::{SetOnce, watch::Receiver};
use tollgate_counter::{descriptor::Secret, lock::Lock, resilience::Backoff, time::Timestamp};
use tollgate_remote::LocalShare;
use tollgate_rules::ActiveRules;
use tracing::warn;

use crate::{
    clocks::Clocks,
    connection::{Link, StoreConnection},
    failure::{BatchFailure, unexpected, within},
    lanes::Lanes,
    script,
    settings::{Passwords, SharedStoreSettings},
    stats::SharedStoreCounters,
};

/// How often a replica greets the store.
const INTERVAL: Duration = Duration::from_secs(1);

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

/// Greets the store, and learns its secret.
#[derive(Debug)]
pub(super) struct Greeter {
    settings: Arc<SharedStoreSettings>,
    /// This replica.
    replica: u64,
    clocks: Clocks,
    /// They have the secret of the keys.
    active_rules: Arc<ActiveRules>,
    /// The replicas that use the store, as it last said.
    replicas: AtomicU32,
    /// Set once the secret is that of the store.
    learnt: SetOnce<()>,
    counts: Arc<SharedStoreCounters>,
    local_share: Arc<Lock<LocalShare>>,
}

/// What the store says.
#[derive(Debug)]
struct Greeting {
    /// The clock of the server.
    time: Timestamp,
    /// The secret of the key hash.
    secret: Secret,
    /// The replicas that use the store.
    replicas: u32,
    /// Whether the store had no secret, and has that of this replica now.
    is_created: bool,
}

impl Greeter {
    pub(super) fn new(
        settings: Arc<SharedStoreSettings>,
        replica: u64,
        clocks: Clocks,
        active_rules: Arc<ActiveRules>,
        counts: Arc<SharedStoreCounters>,
        local_share: Arc<Lock<LocalShare>>,
    ) -> Self {
        let replicas = AtomicU32::new(1);
        let learnt = SetOnce::new();
        Self { settings, replica, clocks, active_rules, replicas, learnt, counts, local_share }
    }

    /// The replicas that use the store, as it last said.
    pub(super) fn replicas(&self) -> u32 {
        self.replicas.load(Relaxed)
    }

    /// Whether this replica has learnt the secret of the store.
    pub(super) fn has_secret(&self) -> bool {
        self.learnt.initialized()
    }

    /// Waits until this replica has learnt the secret of the store.
    pub(super) async fn until_known(&self) {
        self.learnt.wait().await;
    }

    /// Greets the store over `link` until it is cancelled.
    pub(super) async fn keep_greeting(&self, link: &Link) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            let Some((connection, number)) = link.connection(self.settings.timeout).await else { continue };
            let greeting = within(self.settings.timeout, self.greet(connection)).await;
            if greeting.is_err_and(|error| BatchFailure::from_error(&error).is_broken) {
                link.report_broken(number);
            }
        }
    }

    /// Greets the store: learns its secret, its time and the number of replicas.
    pub(super) async fn greet(&self, mut connection: StoreConnection) -> RedisResult<()> {
        let secret = self.active_rules.secret();
        let call = |command: &str, script: &str| self.call(command, script, &secret);
        let value = connection.call((SCRIPT.get_hash(), SOURCE), call).await?;
        let greeting = read(&value).ok_or_else(unexpected)?;
        self.clocks.observe(greeting.time, self.clocks.local());
        self.replicas.store(greeting.replicas.max(1), Relaxed);
        let had_secret = self.has_secret();
        if greeting.secret != secret {
            if had_secret {
                warn!("the shared store has another secret: it lost its data, and all counters begin anew");
            }
            // Keys were hashed with another secret until now.
            self.local_share.lock().clear();
            self.active_rules.set_secret(greeting.secret);
        } else if greeting.is_created && had_secret {
            self.counts.lost.increase();
            warn!("the shared store has lost its secret, and probably counters; the secret was stored again");
        }
        // It is set already, except the first time.
        let _ = self.learnt.set(());
        Ok(())
    }

    /// The command that greets the store: `secret` is created if it has none.
    fn call(&self, command: &str, script: &str, secret: &Secret) -> Cmd {
        let prefix = &self.settings.prefix;
        let replica = self.replica;
        let mut cmd = Cmd::new();
        // In a cluster both keys are on one server, because of the braces.
        cmd.arg(command).arg(script).arg(2);
        cmd.arg(format!("{prefix}{{replicas}}:secret")).arg(format!("{prefix}{{replicas}}:seen"));
        cmd.arg(&secret.to_bytes()).arg(format!("{replica:016x}")).arg(ABSENT_AFTER);
        cmd
    }
}

/// Reads the answer; `None` if it is not one of this script.
fn read(value: &Value) -> Option<Greeting> {
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

/// The delays between attempts to subscribe.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

/// Receives announcements until it is cancelled. `are_received` says whether a connection for them is open.
pub(super) async fn receive_announcements(
    are_received: &AtomicBool,
    settings: &SharedStoreSettings,
    lanes: &Lanes,
    passwords: Receiver<Passwords>,
) {
    let channel = settings.channel();
    let mut backoff = BACKOFF;
    loop {
        let login = passwords.borrow().clone();
        let subscribed = StoreConnection::subscribe(settings, &login, channel.as_bytes()).await;
        if let Ok(mut subscription) = subscribed {
            backoff.reset();
            // What was announced before is not known.
            lanes.forget_all();
            are_received.store(true, Relaxed);
            while let Some(announcement) = subscription.next().await {
                if let Some(key) = settings.key_of(&announcement) {
                    lanes.forget(key);
                }
            }
            are_received.store(false, Relaxed);
        }
        tokio::time::sleep(backoff.next_delay(rand::random())).await;
    }
}
