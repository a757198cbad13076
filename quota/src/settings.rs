//! The settings of the rate limit quota service.

/// Whether there is a rate limit quota service, and its bounds.
#[derive(Clone, Copy, Debug)]
pub struct QuotaSettings {
    /// Whether the rate limit quota service is served.
    pub enabled: bool,
    /// Maximum memory for streams, their buckets and the divisions of these, in bytes.
    pub memory: u64,
    /// Maximum number of pairs of a bucket.
    pub max_pairs: usize,
    /// Maximum size of the keys and values of a bucket, in bytes.
    pub max_id_bytes: usize,
}
