//! Bounds of what clients make the process hold.

use std::sync::Arc;

use crate::{
    server::{reply_bytes::ReplyBytes, request_bytes::RequestBytes},
    settings::Memory,
};

/// Maximum size of a message, in bytes.
pub(super) const MESSAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Memory budgets for data that clients make the process hold.
#[derive(Clone, Debug)]
pub(super) struct Budgets {
    pub(super) requests: Arc<RequestBytes>,
    pub(super) replies: Arc<ReplyBytes>,
}

impl Budgets {
    pub(super) fn new(memory: &Memory) -> Self {
        let bytes = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            requests: Arc::new(RequestBytes::new(bytes(memory.requests))),
            replies: Arc::new(ReplyBytes::new(bytes(memory.replies))),
        }
    }
}
