//! Why the links of this process cannot be used.

/// Why links cannot start or have failed, as a text that names the setting.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{0}")]
pub struct ClusterError(pub(crate) String);
