//! What replicas and the store tell each other. Every second: the secret of the key hash, that the replica uses the store,
//! and the time. At once: announcements of refunds and resets, which may end refusals.

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use redis::{Cmd, RedisResult, from_redis_value};
use tokio::sync::{SetOnce, watch::Receiver};
use tollgate_counter::{descriptor::Secret, resilience::Backoff};
use tollgate_rules::ActiveRules;
use tracing::warn;

use crate::{
    StoreParts,
    connection::StoreConnection,
    failure::{BatchFailure, unexpected, within},
    script,
    settings::Passwords,
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

/// What a replica tells the store of itself, and what it has learnt.
#[derive(Debug)]
pub(super) struct Greeter {
    /// The number of this replica.
    pub(super) replica: u64,
    /// The active rules, which have the secret of the keys.
    pub(super) active_rules: Arc<ActiveRules>,
    /// The replicas that use the store, as it last said.
    pub(super) replicas: AtomicU32,
    /// Whether the secret is that of the store: set once it is.
    pub(super) learnt: SetOnce<()>,
}

impl StoreParts {
    /// Greets the store until it is cancelled.
    pub(super) async fn keep_greeting(&self) {
        let link = &self.lanes.links[0];
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
        let Greeter { active_rules, replicas, learnt, .. } = &self.greeter;
        let secret = active_rules.secret();
        let call = |command: &str, script: &str| self.greeting(command, script, &secret);
        let value = connection.call(&None, (SCRIPT.get_hash(), SOURCE), call).await?;
        let (seconds, micros, stored, present, is_created): (i64, i64, [u8; 16], i64, bool) =
            from_redis_value(value).map_err(|_| unexpected())?;
        let time = script::time(seconds, micros).ok_or_else(unexpected)?;
        let present = u32::try_from(present).map_err(|_| unexpected())?;
        let stored = Secret::from_bytes(stored);
        self.clocks.observe(time, self.clocks.local());
        replicas.store(present.max(1), Relaxed);
        let had_secret = learnt.initialized();
        if stored != secret {
            if had_secret {
                warn!("the shared store has another secret: it lost its data, and all counters begin anew");
            }
            // Keys were hashed with another secret until now.
            self.local_share.lock().clear();
            active_rules.set_secret(stored);
        } else if is_created && had_secret {
            self.counts.lost.increase();
            warn!("the shared store has lost its secret, and probably counters; the secret was stored again");
        }
        // It is set already, except the first time.
        let _ = learnt.set(());
        Ok(())
    }

    /// The command that greets the store: `secret` is created if it has none.
    fn greeting(&self, command: &str, script: &str, secret: &Secret) -> Cmd {
        let prefix = &self.settings.prefix;
        let replica = self.greeter.replica;
        let mut cmd = Cmd::new();
        // In a cluster both keys are on one server, because of the braces.
        cmd.arg(command).arg(script).arg(2);
        cmd.arg(format!("{prefix}{{replicas}}:secret")).arg(format!("{prefix}{{replicas}}:seen"));
        cmd.arg(&secret.to_bytes()).arg(format!("{replica:016x}")).arg(ABSENT_AFTER);
        cmd
    }
}

/// The delays between attempts to subscribe.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

impl StoreParts {
    /// Receives announcements until it is cancelled.
    pub(super) async fn receive_announcements(&self, passwords: Receiver<Passwords>) {
        let Self { settings, lanes, announcements_are_received: are_received, .. } = self;
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
}
