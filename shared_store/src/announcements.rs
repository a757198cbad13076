//! Receives announcements of refunds and resets of other replicas: they may end refusals, so what is known of these
//! counters is forgotten.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use tokio::sync::watch::Receiver;
use tollgate_counter::resilience::Backoff;

use crate::{connection::StoreConnection, lanes::Lanes, passwords::Passwords, settings::SharedStoreSettings};

/// The delays between attempts to subscribe.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

/// Whether announcements are received.
#[derive(Debug, Default)]
pub(super) struct Announcements(AtomicBool);

impl Announcements {
    /// Whether announcements are received. Otherwise no refusal is decided without the store.
    pub(super) fn are_received(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Receives announcements until it is cancelled.
    pub(super) async fn receive(
        &self,
        settings: &SharedStoreSettings,
        lanes: &Lanes,
        passwords: Receiver<Passwords>,
    ) {
        let channel = lanes.keyspace.channel();
        let mut backoff = BACKOFF;
        loop {
            let login = passwords.borrow().clone();
            let subscribed = StoreConnection::subscribe(settings, &login, channel.as_bytes()).await;
            if let Ok(mut subscription) = subscribed {
                backoff.reset();
                // What was announced before is not known.
                lanes.forget_all();
                self.0.store(true, Relaxed);
                while let Some(announcement) = subscription.next().await {
                    if let Some(key) = lanes.keyspace.key_of(&announcement) {
                        lanes.forget(key);
                    }
                }
                self.0.store(false, Relaxed);
            }
            tokio::time::sleep(backoff.next_delay(rand::random())).await;
        }
    }
}
