//! How many descriptors and entries a request may have.
//!
//! Every reader of requests asks [`Bounds`] before it keeps one more of either, so that a small message cannot make the
//! server build a large request.

/// The most descriptors of a request, and the most entries of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most descriptors of a request.
    pub descriptors: usize,
    /// The most entries of a descriptor.
    pub entries: usize,
}

/// Why a request is refused for its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    /// It has too many descriptors.
    #[error("the request has more than {most} descriptors (api.max_descriptors)")]
    Descriptors {
        /// How many are allowed.
        most: usize,
    },
    /// One of its descriptors has too many entries.
    #[error("descriptors[{descriptor}] has more than {most} entries (api.max_entries)")]
    Entries {
        /// The index of the descriptor.
        descriptor: usize,
        /// How many are allowed.
        most: usize,
    },
}

impl Bounds {
    /// Whether a request that has `before` descriptors may have one more.
    #[inline]
    pub fn descriptor(self, before: usize) -> Result<(), TooLarge> {
        let most = self.descriptors;
        if before < most { Ok(()) } else { Err(TooLarge::Descriptors { most }) }
    }

    /// Whether the descriptor of this index, which has `before` entries, may have one more.
    #[inline]
    pub fn entry(self, descriptor: usize, before: usize) -> Result<(), TooLarge> {
        let most = self.entries;
        if before < most { Ok(()) } else { Err(TooLarge::Entries { descriptor, most }) }
    }
}
