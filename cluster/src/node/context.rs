//! What each machine gets in addition to an input.

use tollgate_counter::time::Timestamp;

use crate::node::{membership::Membership, output::NodeOutput};

/// The time, the members, and where messages and actions go.
#[derive(Debug)]
pub(super) struct Context<'n> {
    /// The monotonic time, for timeouts.
    pub(super) now: Timestamp,
    /// The time by which counters are decided. It may jump forward at any time, and back when the clock gives up a
    /// lead.
    pub(super) wall: Timestamp,
    /// The last tick that judged silence. Later, this replica may not have read what peers have sent.
    pub(super) judged_at: Timestamp,
    pub(super) members: &'n Membership,
    pub(super) out: &'n mut NodeOutput,
}
