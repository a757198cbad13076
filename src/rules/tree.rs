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
        pattern::{Pattern, Patterns},
        place::Place,
        usual::Trunk,
    },
};

/// The bytes of a text that needs no memory of its own: enough for nearly all.
const NEAR: usize = 256;

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
    pub(crate) place: Place,
    pub(crate) key: Box<str>,
    pub(crate) value: Box<str>,
    pub(crate) rule: Option<Arc<Rule>>,
    pub(crate) value_to_metric: bool,
    pub(crate) share_threshold: bool,
    pub(crate) children: Level,
    /// How entries lead to it that have the key and a value as it means them.
    pub(crate) usual: How,
    /// Set when the first descriptor has come to its rule by the usual way.
    pub(crate) trunk: OnceLock<Box<Trunk>>,
}

/// Why an entry led to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Its key and value are those of the node.
    Exact,
    /// They match its pattern.
    Pattern,
    /// Its key is that of a node without a value.
    KeyOnly,
}

/// A node on the way to a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop<'r> {
    pub(crate) node: &'r Node,
    pub(crate) how: How,
}

/// A way through the tree.
pub(crate) type Hops<'r> = SmallVec<[Hop<'r>; 4]>;

/// A key and a value as one text: `key_value`, or `key` alone for a rule without a value.
pub(crate) fn composite(key: &str, value: &str) -> String {
    if value.is_empty() { key.to_owned() } else { format!("{key}_{value}") }
}

impl How {
    /// How a node of this key and value is meant to be led to.
    pub(crate) fn usual(key: &str, value: &str) -> Self {
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

    /// Adds the way that `entries` lead to `hops`: one for each entry, or fewer where it ends before. Says how many
    /// tables and patterns were tried.
    pub(crate) fn way<'r>(&'r self, entries: &[Entry<'_>], hops: &mut Hops<'r>) -> usize {
        let (mut level, mut visits) = (self, 0);
        for entry in entries {
            let Some(hop) = level.hop(*entry, &mut visits) else { break };
            hops.push(hop);
            level = &hop.node.children;
        }
        visits
    }

    /// The node that `entries` lead to, if each has led on as its node means it to be: with its key, and not only with
    /// a text that reads like key and value together.
    #[inline]
    pub(crate) fn usual(&self, entries: &[Entry<'_>]) -> Option<&Node> {
        let (mut level, mut last) = (self, None);
        for entry in entries {
            let node = level.usual_step(*entry)?;
            (level, last) = (&node.children, Some(node));
        }
        last
    }

    #[inline(always)]
    fn usual_step(&self, entry: Entry<'_>) -> Option<&Node> {
        // Often there is but one, and it need not be looked for.
        if let [only] = &*self.nodes
            && *only.key == *entry.key
        {
            match only.usual {
                How::KeyOnly => return Some(only),
                How::Exact => return (*only.value == *entry.value).then_some(only),
                How::Pattern => {}
            }
        }
        let Hop { node, how } = self.hop(entry, &mut 0)?;
        // Texts that are the same, of keys as long, have the same keys; one that fits a pattern is not the same.
        let has_key = node.key.len() == entry.key.len() && (how != How::Pattern || *node.key == *entry.key);
        (how == node.usual && has_key).then_some(node)
    }

    fn hop(&self, entry: Entry<'_>, visits: &mut usize) -> Option<Hop<'_>> {
        *visits += 1;
        let length = entry.key.len() + 1 + entry.value.len();
        // Where nothing can match the text, it need not be put together.
        if self.has_text_of(length) || !self.patterns.is_empty() {
            let mut near = [0; NEAR];
            let far;
            let text = match near.get_mut(..length) {
                Some(text) => {
                    let (key, value) = text.split_at_mut(entry.key.len());
                    key.copy_from_slice(entry.key.as_bytes());
                    value[0] = b'_';
                    value[1..].copy_from_slice(entry.value.as_bytes());
                    &*text
                }
                None => {
                    far = [entry.key, "_", entry.value].concat();
                    far.as_bytes()
                }
            };
            if let Some(node) = self.at(text) {
                return Some(Hop { node, how: How::Exact });
            }
            let found = self.patterns.first_match(text);
            *visits += found.visits;
            if let Some(number) = found.number {
                return Some(Hop { node: &self.nodes[number as usize], how: How::Pattern });
            }
        }
        *visits += 1;
        let node = self.at(entry.key.as_bytes())?;
        Some(Hop { node, how: How::KeyOnly })
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
