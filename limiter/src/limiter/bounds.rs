//! Bounds on the number of requests of a call, descriptors of a request, and entries of a descriptor.
//!
//! Every decoder checks [`RequestBounds`] before it stores another of them, so that a small message cannot expand into
//! a large call.

/// The maximum number of descriptors of all requests of a call. Answers are as many, and one call is decided at once.
const CALL_DESCRIPTORS_MAX: usize = 4_096;
/// The maximum number of entries of all requests of a call.
const CALL_ENTRIES_MAX: usize = 32_768;
/// The maximum number of limits that a call sets. Each counts as a request with one descriptor.
const LIMITS_MAX: usize = 1_000;

/// The maximum number of requests of a call, of descriptors of a request, and of entries of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestBounds {
    /// The maximum number of requests of a call.
    pub requests: usize,
    /// The maximum number of descriptors of a request.
    pub descriptors: usize,
    /// The maximum number of entries of a descriptor.
    pub entries: usize,
}

/// Why a request or a call is refused for its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooLarge {
    /// Too many requests.
    #[error("the call has more than {most} requests (api.max_requests)")]
    Requests {
        /// The maximum.
        most: usize,
    },
    /// Too many limits to set.
    #[error("the call has more than {LIMITS_MAX} limits")]
    Limits,
    /// Too many descriptors in all requests of a call.
    #[error("the requests of the call have more than {CALL_DESCRIPTORS_MAX} descriptors in all")]
    CallDescriptors,
    /// Too many entries in all requests of a call.
    #[error("the requests of the call have more than {CALL_ENTRIES_MAX} entries in all")]
    CallEntries,
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

/// Counts requests, descriptors and entries of a call in their order, within bounds.
#[derive(Clone, Copy, Debug)]
pub struct CallSize {
    bounds: RequestBounds,
    // The error if there are too many requests.
    too_many: TooLarge,
    requests: usize,
    // Of the last request, and of the last descriptor.
    descriptors: usize,
    entries: usize,
    all_descriptors: usize,
    all_entries: usize,
}

impl CallSize {
    /// The least length of an encoded message that can exceed the bounds of a call, in bytes. A descriptor and an entry
    /// take at least two.
    pub const BYTES_MIN: usize = 2 * CALL_DESCRIPTORS_MAX;

    /// An empty call.
    pub fn new(bounds: RequestBounds) -> Self {
        let too_many = TooLarge::Requests { most: bounds.requests };
        Self { bounds, too_many, requests: 0, descriptors: 0, entries: 0, all_descriptors: 0, all_entries: 0 }
    }

    /// An empty call that sets limits.
    pub fn for_limits(bounds: RequestBounds) -> Self {
        let bounds = RequestBounds { requests: LIMITS_MAX, ..bounds };
        Self { too_many: TooLarge::Limits, ..Self::new(bounds) }
    }

    /// The index of the last request; `None` if requests are not counted.
    pub fn request_index(&self) -> Option<usize> {
        self.requests.checked_sub(1)
    }

    /// Counts the next request.
    pub fn request(&mut self) -> Result<(), TooLarge> {
        if self.requests >= self.bounds.requests {
            return Err(self.too_many);
        }
        (self.requests, self.descriptors, self.entries) = (self.requests + 1, 0, 0);
        Ok(())
    }

    /// Counts the next descriptor of the last request.
    pub fn descriptor(&mut self) -> Result<(), TooLarge> {
        self.bounds.descriptor(self.descriptors)?;
        (self.descriptors, self.entries) = (self.descriptors + 1, 0);
        self.all_descriptors += 1;
        if self.requests > 0 && self.all_descriptors > CALL_DESCRIPTORS_MAX {
            return Err(TooLarge::CallDescriptors);
        }
        Ok(())
    }

    /// Counts the next entry of the last descriptor.
    pub fn entry(&mut self) -> Result<(), TooLarge> {
        // An entry is read after its descriptor was counted.
        self.bounds.entry(self.descriptors.saturating_sub(1), self.entries)?;
        self.entries += 1;
        self.all_entries += 1;
        if self.requests > 0 && self.all_entries > CALL_ENTRIES_MAX {
            return Err(TooLarge::CallEntries);
        }
        Ok(())
    }
}

impl TooLarge {
    /// Whether one request is too large, and not the call.
    pub fn is_of_request(self) -> bool {
        match self {
            Self::Descriptors { .. } | Self::Entries { .. } => true,
            Self::Requests { .. } | Self::Limits | Self::CallDescriptors | Self::CallEntries => false,
        }
    }
}

impl RequestBounds {
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
