//! From the entries of a descriptor to its rule.
//!
//! Each entry is looked up among the children of the node found for the one before. A node once chosen is kept:
//! where nothing below it matches there is no rule, whatever a sibling would have had.

use std::sync::{Arc, OnceLock};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::{
    descriptor::Entry,
    rules::{
        Rule,
        diagnostics::Location,
        key_prefix::KeyPrefix,
        pattern::{Pattern, Patterns},
    },
};

/// The bytes of a text that needs no memory of its own: enough for nearly all.
const INLINE_BYTES: usize = 256;

/// The descriptors that stand beside each other in a rule file.
#[derive(Debug, Default)]
pub(crate) struct Level {
    // In the order of declaration.
    nodes: Vec<Node>,
    // Every node under its key and value as written, so that a literal match comes first for patterns as well.
    by_text: FxHashMap<Box<[u8]>, u32>,
    // A bit for each length of these texts; the last one is for all that are longer.
    lengths: u64,
    patterns: Patterns,
}

/// One descriptor of a rule file.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) location: Location,
    pub(crate) key: Box<str>,
    pub(crate) value: Box<str>,
    pub(crate) rule: Option<Arc<Rule>>,
    pub(crate) value_to_metric: bool,
    pub(crate) share_threshold: bool,
    pub(crate) children: Level,
    /// How entries lead to it that have the key and a value as it means them.
    pub(crate) declared_kind: MatchKind,
    /// Set when the first descriptor has come to its rule by the usual way.
    pub(crate) key_prefix: OnceLock<Box<KeyPrefix>>,
}

/// Why an entry led to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchKind {
    /// Its key and value are those of the node.
    Exact,
    /// They match its pattern.
    Pattern,
    /// Its key is that of a node without a value.
    KeyOnly,
}

/// A node on the way to a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step<'r> {
    pub(crate) node: &'r Node,
    pub(crate) kind: MatchKind,
}

/// A way through the tree.
pub(crate) type Steps<'r> = SmallVec<[Step<'r>; 4]>;

/// A key and a value as one text: `key_value`, or `key` alone for a rule without a value.
pub(crate) fn composite(key: &str, value: &str) -> String {
    if value.is_empty() { key.to_owned() } else { format!("{key}_{value}") }
}

impl MatchKind {
    /// How a node of this key and value is meant to be led to.
    pub(crate) fn declared(key: &str, value: &str) -> Self {
        if Pattern::parse(&composite(key, value)).is_some() {
            Self::Pattern
        } else if value.is_empty() {
            Self::KeyOnly
        } else {
            Self::Exact
        }
    }
}

impl Node {
    pub(crate) fn composite(&self) -> String {
        composite(&self.key, &self.value)
    }
}

impl Level {
    /// The node whose key and value together read like `composite`.
    pub(crate) fn get(&self, composite: &str) -> Option<&Node> {
        self.at(composite.as_bytes())
    }

    /// Makes room for so many more nodes.
    pub(crate) fn reserve(&mut self, more: usize) {
        self.nodes.reserve_exact(more);
        self.by_text.reserve(more);
    }

    /// Adds a node behind the others, none of which may read the same.
    pub(crate) fn push(&mut self, node: Node) {
        let composite = node.composite();
        debug_assert!(self.get(&composite).is_none(), "composite keys are unique");
        // A file of at most 16 MiB cannot hold 2^32 nodes, nor can the files of one directory.
        let number = self.nodes.len() as u32;
        if let Some(pattern) = Pattern::parse(&composite) {
            self.patterns.add(number, &pattern);
        }
        self.lengths |= length_bit(composite.len());
        self.by_text.insert(composite.into_bytes().into(), number);
        self.nodes.push(node);
    }

    /// Adds the way that `entries` lead to `steps`: one for each entry, or fewer where it ends before. Says how many
    /// tables and patterns were tried.
    pub(crate) fn walk<'r>(&'r self, entries: &[Entry<'_>], steps: &mut Steps<'r>) -> usize {
        let (mut level, mut visits) = (self, 0);
        for entry in entries {
            let Some(step) = level.step(*entry, &mut visits) else { break };
            steps.push(step);
            level = &step.node.children;
        }
        visits
    }

    /// The node that `entries` lead to, if each has led on as its node means it to be: with its key, and not only with
    /// a text that reads like key and value together.
    #[inline]
    pub(crate) fn direct(&self, entries: &[Entry<'_>]) -> Option<&Node> {
        let (mut level, mut last) = (self, None);
        for entry in entries {
            let node = level.direct_step(*entry)?;
            (level, last) = (&node.children, Some(node));
        }
        last
    }

    #[inline(always)]
    fn direct_step(&self, entry: Entry<'_>) -> Option<&Node> {
        // Often there is but one, and it need not be looked for.
        if let [only] = &*self.nodes
            && *only.key == *entry.key
        {
            match only.declared_kind {
                MatchKind::KeyOnly => return Some(only),
                MatchKind::Exact => return (*only.value == *entry.value).then_some(only),
                MatchKind::Pattern => {}
            }
        }
        let Step { node, kind } = self.step(entry, &mut 0)?;
        // Texts that are the same, of keys as long, have the same keys; one that fits a pattern is not the same.
        let has_key =
            node.key.len() == entry.key.len() && (kind != MatchKind::Pattern || *node.key == *entry.key);
        (kind == node.declared_kind && has_key).then_some(node)
    }

    fn step(&self, entry: Entry<'_>, visits: &mut usize) -> Option<Step<'_>> {
        *visits += 1;
        let length = entry.key.len() + 1 + entry.value.len();
        // Where nothing can match the text, it need not be put together.
        if self.has_text_of(length) || !self.patterns.is_empty() {
            let mut inline = [0; INLINE_BYTES];
            let allocated;
            let text = match inline.get_mut(..length) {
                Some(text) => {
                    let (key, value) = text.split_at_mut(entry.key.len());
                    key.copy_from_slice(entry.key.as_bytes());
                    value[0] = b'_';
                    value[1..].copy_from_slice(entry.value.as_bytes());
                    &*text
                }
                None => {
                    allocated = [entry.key, "_", entry.value].concat();
                    allocated.as_bytes()
                }
            };
            if let Some(node) = self.at(text) {
                return Some(Step { node, kind: MatchKind::Exact });
            }
            let found = self.patterns.first_match(text);
            *visits += found.visits;
            if let Some(number) = found.number {
                return Some(Step { node: &self.nodes[number as usize], kind: MatchKind::Pattern });
            }
        }
        *visits += 1;
        let node = self.at(entry.key.as_bytes())?;
        Some(Step { node, kind: MatchKind::KeyOnly })
    }

    /// Its nodes, in the order of declaration.
    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    fn has_text_of(&self, length: usize) -> bool {
        self.lengths & length_bit(length) != 0
    }

    fn at(&self, text: &[u8]) -> Option<&Node> {
        if !self.has_text_of(text.len()) {
            return None;
        }
        self.by_text.get(text).map(|number| &self.nodes[*number as usize])
    }
}

fn length_bit(length: usize) -> u64 {
    1 << length.min(63)
}
