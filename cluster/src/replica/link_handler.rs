//! What the links of this replica receive and send.

use prost::bytes::Bytes;
use tracing::warn;

use crate::{
    MemberId,
    link::{DisconnectReason, LinkHandler},
    replica::Replica,
    wire,
};

/// The most messages in a batch.
const MESSAGES_MAX: usize = 1_024;

impl LinkHandler for Replica {
    fn connected(&self, peer: MemberId, address: &str) {
        self.with_node(|node, now| node.connected(peer, address, now));
    }

    fn heard(&self, peer: MemberId) {
        let now = self.now();
        self.lock().heard(peer, now);
    }

    fn received(&self, peer: MemberId, batch: Bytes) {
        match wire::decode(&batch, self.clock.now()) {
            Ok(messages) => self.with_node(|node, now| {
                for message in messages {
                    node.receive(peer, message, now);
                }
            }),
            Err(error) => {
                warn!(member = %peer, %error, "closed the link to a replica that sent an unreadable batch");
                self.links.forget(peer);
            }
        }
    }

    fn next_batch(&self, peer: MemberId, bytes_max: usize) -> Option<Bytes> {
        let now = self.now();
        let messages = self.lock().outgoing(peer, MESSAGES_MAX, bytes_max, now);
        (!messages.is_empty()).then(|| wire::encode(&messages, self.clock.now()))
    }

    fn disconnected(&self, peer: MemberId, reason: DisconnectReason) {
        self.with_node(|node, now| node.disconnected(peer, reason == DisconnectReason::Dead, now));
    }
}
