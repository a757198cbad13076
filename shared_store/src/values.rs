//! Values of keys that the counters do not use: what another program has written, and is only read.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use redis::{RedisResult, Value, cmd};
use tokio::{sync::watch, task::JoinSet};

use crate::{
    SharedStore,
    connection::{Link, StoreConnection},
    failure::{BatchFailure, within},
    node::STORED_VALUE_BYTES_MAX,
    settings::{PasswordError, SharedStoreSettings},
};

/// Reads values of a store. Clones share its connection.
#[derive(Clone, Debug)]
pub struct StoredValues {
    link: Link,
    timeout: Duration,
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredValue {
    /// The key has none, or an empty one.
    Absent,
    /// The value.
    Value(Vec<u8>),
    /// The key has something else than a text of at most 4 KiB.
    Unreadable(String),
    /// The store cannot be used, with the reason.
    Unavailable(String),
}

impl SharedStore {
    /// Reads values over the connections of the counters.
    pub fn values(&self) -> StoredValues {
        StoredValues { link: self.0.lanes.links[0].clone(), timeout: self.0.settings.timeout }
    }
}

impl StoredValues {
    /// Starts to connect to a store without counters, with tasks in `background`. Passwords that cannot be read are an
    /// error.
    pub fn start(settings: SharedStoreSettings, background: &mut JoinSet<()>) -> Result<Self, PasswordError> {
        let sources = settings.passwords.clone();
        let (passwords, received) = watch::channel(sources.read()?);
        let values = Self { link: Link::new(), timeout: settings.timeout };
        let link = values.link.clone();
        let settings = Arc::new(settings);
        background.spawn(async move {
            link.run(&settings, received, |_| async { Ok(()) }).await;
        });
        background.spawn(sources.watch(passwords));
        Ok(values)
    }

    /// The values of keys, in their order. The commands are sent together, and wait no longer than `store.redis.timeout`.
    pub async fn read(&self, keys: &[String]) -> Vec<StoredValue> {
        let unavailable = |reason: &str| vec![StoredValue::Unavailable(reason.to_owned()); keys.len()];
        let Some((connection, number)) = self.link.connection(self.timeout).await else {
            let reason = self.link.problem();
            return unavailable(reason.as_deref().unwrap_or("no connection in time"));
        };
        let replies = join_all(keys.iter().map(|key| get(connection.clone(), key)));
        let replies = match within(self.timeout, async { Ok(replies.await) }).await {
            Ok(replies) => replies,
            Err(error) => {
                self.link.report_broken(number);
                return unavailable(&error.to_string());
            }
        };
        let is_broken = |reply: &RedisResult<_>| {
            reply.as_ref().is_err_and(|error| BatchFailure::from_error(error).is_broken)
        };
        if replies.iter().any(is_broken) {
            self.link.report_broken(number);
        }
        replies.into_iter().map(StoredValue::from_reply).collect()
    }
}

/// Reads a value, but no more than is allowed: a longer one is not sent. In a cluster each key has a command of its own.
async fn get(mut connection: StoreConnection, key: &str) -> RedisResult<Value> {
    let mut range = cmd("GETRANGE");
    range.arg(key).arg(0).arg(STORED_VALUE_BYTES_MAX);
    connection.send(&None, range).await
}

impl StoredValue {
    fn from_reply(reply: RedisResult<Value>) -> Self {
        match reply {
            Ok(Value::BulkString(value)) if value.is_empty() => Self::Absent,
            Ok(Value::BulkString(value)) if value.len() > STORED_VALUE_BYTES_MAX => {
                Self::Unreadable(format!("it is longer than {STORED_VALUE_BYTES_MAX} bytes"))
            }
            Ok(Value::BulkString(value)) => Self::Value(value),
            Ok(_) => Self::Unavailable("the server's answer has an unexpected form".to_owned()),
            Err(error) if error.code() == Some("WRONGTYPE") => Self::Unreadable(error.to_string()),
            Err(error) => Self::Unavailable(error.to_string()),
        }
    }
}
