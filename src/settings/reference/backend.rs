//! The store of a replica that stands in for the reference.

/// Where the counters are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The memory of this replica.
    Memory,
    /// The memory of all replicas of a cluster.
    Cluster,
    /// Servers that replicas share.
    Redis,
}

/// Where the counters are, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendChoice {
    /// Where they are.
    pub backend: Backend,
    /// Why they are there.
    pub reason: &'static str,
}

impl Backend {
    /// The name of the backend in the log.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cluster => "cluster",
            Self::Redis => "redis",
        }
    }
}

impl BackendChoice {
    /// Why each replica counts by itself; `None` if replicas share their counters.
    pub fn alone(&self) -> Option<&'static str> {
        (self.backend == Backend::Memory).then_some(self.reason)
    }

    /// A variable of counters in Redis, which has no effect.
    pub(super) fn unused(&self, variable: &str) -> String {
        format!("{variable} (counters are in memory: {})", self.reason)
    }
}
