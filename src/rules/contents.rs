//! What a source of rules holds: the bytes of files or resources, and the documents in them.

use std::{hash::Hasher, sync::Arc};

use siphasher::sip128::{Hasher128, SipHasher13};

#[cfg(feature = "server")]
use crate::rules::source::xds::resource;
use crate::{
    rules::{Problems, diagnostics::Origin},
    yaml::{self, Stream},
};

/// The bytes of a rule file or of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A rule file.
    File {
        /// The path, for messages.
        path: Arc<str>,
        /// The content.
        bytes: Vec<u8>,
    },
    /// A resource of a control plane: a `RateLimitConfig`.
    #[cfg(feature = "server")]
    Resource {
        /// The content.
        bytes: Vec<u8>,
    },
}

impl Source {
    /// A rule file with this text.
    pub fn file(path: &str, text: impl Into<Vec<u8>>) -> Self {
        Self::File { path: path.into(), bytes: text.into() }
    }

    /// The content.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::File { bytes, .. } => bytes,
            #[cfg(feature = "server")]
            Self::Resource { bytes } => bytes,
        }
    }

    /// The documents, and what they come from.
    pub(super) fn documents(&self) -> (Arc<Origin>, Stream) {
        match self {
            Self::File { path, bytes } => (Origin::file(path), yaml::load(bytes)),
            #[cfg(feature = "server")]
            Self::Resource { bytes } => resource::load(bytes),
        }
    }

    /// The path; empty for a resource, whose name is part of its content.
    pub(super) fn path(&self) -> &str {
        match self {
            Self::File { path, .. } => path,
            #[cfg(feature = "server")]
            Self::Resource { .. } => "",
        }
    }
}

/// All files or resources at one time.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    pub(super) sources: Vec<Source>,
    pub(super) problems: Problems,
}

impl Contents {
    /// A fingerprint of the paths, the contents and the problems.
    pub(super) fn fingerprint(&self) -> u128 {
        let problems = self.problems.to_string();
        let sources = self.sources.iter().flat_map(|source| [source.path().as_bytes(), source.bytes()]);
        hash_of(sources.chain([problems.as_bytes()]))
    }

    /// The total size.
    pub(super) fn bytes(&self) -> usize {
        self.sources.iter().map(|source| source.bytes().len()).sum()
    }
}

/// The hash of these parts in order, each with its length.
pub(super) fn hash_of<'p>(parts: impl Iterator<Item = &'p [u8]>) -> u128 {
    let mut hasher = SipHasher13::new();
    for part in parts {
        hasher.write(&(part.len() as u64).to_le_bytes());
        hasher.write(part);
    }
    hasher.finish128().as_u128()
}
