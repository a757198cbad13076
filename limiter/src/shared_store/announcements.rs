//! Hears of refunds and resets of other replicas: they may end refusals, so what is known of these counters is
//! forgotten.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use futures_util::StreamExt;
use tokio::sync::watch;

use crate::{
    remote::lock,
    resilience::Backoff,
    shared_store::{SharedStore, connection::Connection, passwords::Passwords},
};

/// The delays between attempts to subscribe.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));

impl SharedStore {
    /// Hears announcements until it is cancelled. While it hears none, no refusal is decided without the store.
    pub(super) async fn hear_announcements(self, passwords: watch::Receiver<Passwords>) {
        let (shared, channel) = (&self.0, self.0.channel());
        let mut backoff = BACKOFF;
        loop {
            let login = passwords.borrow().clone();
            let subscribed = Connection::subscribe(&shared.settings, &login, channel.as_bytes()).await;
            if let Ok(mut subscription) = subscribed {
                backoff.reset();
                // What was announced before is not known.
                shared.lanes.iter().for_each(|lane| lock(lane).forget_all());
                shared.is_subscribed.store(true, Relaxed);
                let mut announcements = subscription.on_message();
                while let Some(announcement) = announcements.next().await {
                    if let Some(key) = shared.key_of(announcement.get_payload_bytes()) {
                        lock(&shared.lanes[shared.lane_of(key)]).forget(key);
                    }
                }
                shared.is_subscribed.store(false, Relaxed);
            }
            tokio::time::sleep(backoff.next_delay(rand::random())).await;
        }
    }
}
