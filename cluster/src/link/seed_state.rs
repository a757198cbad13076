//! The state of the search for other members.

/// The state of the search for other members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeedState {
    /// Some seed has not been tried yet.
    Searching,
    /// All seeds were tried, and the last try at each found no other member.
    NotFound(SeedFailures),
    /// Another process of the cluster was found at a seed.
    Found,
}

/// What the seeds yielded instead of members, as numbers of addresses or names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SeedFailures {
    /// Names that could not be resolved.
    pub unresolved: usize,
    /// Addresses that did not answer, or not as a member; a process may be there.
    pub unreachable: usize,
    /// Addresses at which a process accepted the connection, and did not complete the handshake in time.
    pub slow: usize,
    /// Addresses that refused connections.
    pub refused: usize,
    /// Addresses of this process.
    pub own: usize,
}
