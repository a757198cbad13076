//! Bounds on the number of descriptors and entries of a request.
//!
//! Every decoder checks [`Bounds`] before it stores another descriptor or entry, so that a small message cannot expand
//! into a large request.

/// The maximum number of descriptors of a request, and of entries of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The maximum number of descriptors of a request.
    pub descriptors: usize,
    /// The maximum number of entries of a descriptor.
    pub entries: usize,
}

/// Why a request is refused for its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    /// Too many descriptors.
    #[error("the request has more than {most} descriptors (api.max_descriptors)")]
    Descriptors {
        /// The maximum.
        most: usize,
    },
    /// Too many entries in one descriptor.
    #[error("descriptors[{descriptor}] has more than {most} entries (api.max_entries)")]
    Entries {
        /// The index of the descriptor.
        descriptor: usize,
        /// The maximum.
        most: usize,
    },
}

impl Bounds {
    /// Whether a request with `before` descriptors may have another one.
    #[inline]
    pub fn descriptor(self, before: usize) -> Result<(), TooLarge> {
        let most = self.descriptors;
        if before < most { Ok(()) } else { Err(TooLarge::Descriptors { most }) }
    }

    /// Whether the descriptor at this index, with `before` entries, may have another one.
    #[inline]
    pub fn entry(self, descriptor: usize, before: usize) -> Result<(), TooLarge> {
        let most = self.entries;
        if before < most { Ok(()) } else { Err(TooLarge::Entries { descriptor, most }) }
    }
}
