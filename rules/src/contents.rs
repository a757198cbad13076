//! What a source of rules holds: the bytes of files or resources, and the documents in them.

use std::{hash::Hasher, sync::Arc};

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::{
    diagnostics::{Problems, RuleOrigin},
    yaml::{self, YamlStream},
};

/// Reads the documents of a source from its path and its content.
pub type ReadDocuments = for<'t> fn(&str, &'t [u8]) -> Documents<'t>;

/// The documents of a source.
#[derive(Debug)]
pub struct Documents<'t> {
    /// What the documents come from.
    pub origin: Arc<RuleOrigin>,
    /// The documents and the problems in them.
    pub stream: YamlStream<'t>,
    /// What the reader has left out, if there is something that it does not know.
    pub unknown: Option<Unknown>,
}

/// What a reader has left out, because it does not know it.
#[derive(Debug)]
pub struct Unknown {
    /// The first location, and what is there.
    pub first: yaml::Located<String>,
    /// The number of locations.
    pub count: usize,
}

/// A rule file, or a resource of a control plane.
#[derive(Clone, Debug)]
pub struct RuleInput {
    path: Arc<str>,
    bytes: Vec<u8>,
    documents: ReadDocuments,
}

impl RuleInput {
    /// A rule file with this text.
    pub fn file(path: &str, text: impl Into<Vec<u8>>) -> Self {
        Self {
            path: path.into(),
            bytes: text.into(),
            documents: |path, bytes| Documents {
                origin: RuleOrigin::file(path),
                stream: yaml::load(bytes),
                unknown: None,
            },
        }
    }

    /// A resource in another format than that of files.
    pub fn resource(bytes: Vec<u8>, documents: ReadDocuments) -> Self {
        Self { path: Arc::default(), bytes, documents }
    }

    /// The path of a file; empty for a resource, whose name is part of its content.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The content.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn documents(&self) -> Documents<'_> {
        (self.documents)(&self.path, &self.bytes)
    }
}

impl PartialEq for RuleInput {
    fn eq(&self, other: &Self) -> bool {
        (&self.path, &self.bytes) == (&other.path, &other.bytes)
    }
}

impl Eq for RuleInput {}

/// All files or resources at one time.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// The files or resources.
    pub sources: Vec<RuleInput>,
    /// Why other files or resources could not be read.
    pub problems: Problems,
}

impl Contents {
    /// A fingerprint of the paths, the contents and the problems.
    pub fn fingerprint(&self) -> u128 {
        let problems = self.problems.to_string();
        let sources = self.sources.iter().flat_map(|source| [source.path().as_bytes(), source.bytes()]);
        hash_of(sources.chain([problems.as_bytes()]))
    }

    /// The total size.
    pub(super) fn bytes(&self) -> usize {
        self.sources.iter().map(|source| source.bytes().len()).sum()
    }
}

/// The hash of these parts in order, each with its length. It is the same in every version: files on disk have it.
pub fn hash_of<'p>(parts: impl Iterator<Item = &'p [u8]>) -> u128 {
    let mut hasher = SipHasher13::new();
    for part in parts {
        hasher.write(&(part.len() as u64).to_le_bytes());
        hasher.write(part);
    }
    hasher.finish128().as_u128()
}
