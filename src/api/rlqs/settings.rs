//! The settings of the rate limit quota service.

/// Whether there is a rate limit quota service, and its bounds.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Whether it is served.
    pub enabled: bool,
    /// Maximum number of streams.
    pub max_streams: usize,
    /// Maximum number of buckets of a stream.
    pub max_stream_buckets: usize,
    /// Maximum number of buckets of all streams.
    pub max_buckets: usize,
    /// Maximum number of pairs of a bucket.
    pub max_pairs: usize,
    /// Maximum size of the keys and values of a bucket, in bytes.
    pub max_id_bytes: usize,
}
