//! The prefix tree that leads from the entries of a descriptor to its rule.
//!
//! Each entry is looked up among the children of the node that matched the previous entry. There is no backtracking:
//! if nothing below the chosen node matches, there is no rule, even if a sibling would have had one.

use std::borrow::Cow;

use ipnet::IpNet;
use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;
use tollgate_counter::descriptor::Entry;

use crate::{
    diagnostics::Location,
    group::NetworkGroup,
    network_table::NetworkTable,
    pattern::{Pattern, Patterns},
};

/// The size of the buffer on the stack for `key_value`; longer texts are allocated.
const INLINE_BYTES: usize = 256;

/// The descriptors of one level of a rule file.
#[derive(Debug)]
pub(crate) struct TreeLevel {
    // In the order of declaration.
    nodes: Vec<TreeNode>,
    // Every node but networks by its literal key and value, patterns included: a literal match takes precedence.
    by_text: FxHashMap<Box<[u8]>, u32>,
    // A bit for each length of these texts; the highest bit stands for all longer ones.
    lengths: u64,
    patterns: Patterns,
    networks: Option<Box<NetworkTable>>,
    // Whether there are patterns or networks.
    has_ranges: bool,
}

/// One descriptor of a rule file.
#[derive(Debug)]
pub struct TreeNode {
    /// The location in the rule file or resource.
    pub location: Location,
    /// The key as written.
    pub key: Box<str>,
    /// The value as written, a network in its one spelling; empty if the descriptor has none.
    pub value: Box<str>,
    /// The index of the rule of the node among those of the domain.
    pub(crate) rule: Option<usize>,
    /// Whether names in metrics contain the value.
    pub value_to_metric: bool,
    /// Whether all values that match the pattern or network share a counter.
    pub share_threshold: bool,
    /// The networks that are counted as one key.
    pub group: Option<NetworkGroup>,
    /// `None` for most nodes, of which a large file has many.
    pub(crate) children: Option<Box<TreeLevel>>,
    /// The kind of match of an entry with the literal key and a fitting value.
    pub declared_kind: MatchKind,
}

/// The way in which an entry matches a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchKind {
    /// Key and value are equal to those of the node.
    Exact,
    /// The key is equal to that of the node, and its network contains the address in the value.
    Network,
    /// Key and value match the pattern of the node.
    Pattern,
    /// The key is equal to that of a node without a value.
    KeyOnly,
}

/// A node on the path to a rule.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MatchedNode<'r> {
    pub(crate) node: &'r TreeNode,
    pub(crate) kind: MatchKind,
}

/// A path through the tree. As many steps as a decoder holds entries without an allocation.
pub(crate) type Steps<'r> = SmallVec<[MatchedNode<'r>; 8]>;

/// The composite text `key_value`, or `key` for a node without a value.
pub fn composite(key: &str, value: &str) -> String {
    if value.is_empty() { key.to_owned() } else { [key, "_", value].concat() }
}

impl MatchKind {
    /// The kind of match that a node with this key and value declares, unless it is a network.
    pub(crate) fn declared(key: &str, value: &str) -> Self {
        if Pattern::parse(&composite(key, value)).is_some() {
            Self::Pattern
        } else if value.is_empty() {
            Self::KeyOnly
        } else {
            Self::Exact
        }
    }

    /// Whether a value of the node, if it has one, stands for several.
    pub(crate) fn has_several_values(self) -> bool {
        match self {
            Self::Network | Self::Pattern => true,
            Self::Exact | Self::KeyOnly => false,
        }
    }
}

impl MatchedNode<'_> {
    /// Whether all values that match here share a counter.
    pub(crate) fn is_shared(&self) -> bool {
        self.node.share_threshold && self.kind.has_several_values()
    }

    /// The value of `entry` in the key of its counter.
    pub(crate) fn grouped_value<'v>(&self, entry: Entry<'v>) -> Cow<'v, [u8]> {
        self.node.group.map_or(Cow::Borrowed(entry.value), |group| group.group_value(entry.value))
    }

    /// Whether `entry` has the key of the node and matches in the declared way.
    fn is_literal(&self, entry: Entry<'_>) -> bool {
        let Self { node, kind } = *self;
        // Equal composite texts with keys of equal length have equal keys. A pattern match compares the keys.
        let has_key = node.key.len() == entry.key.len()
            && (kind != MatchKind::Pattern || node.key.as_bytes() == entry.key);
        kind == node.declared_kind && has_key
    }
}

impl TreeNode {
    /// The level below the node; empty for a leaf.
    pub(crate) fn children(&self) -> &TreeLevel {
        static NONE: TreeLevel = TreeLevel::new();
        self.children.as_deref().unwrap_or(&NONE)
    }

    /// The text that entries are compared with: `key_value`, or `key` if it has no value. It is unique in its level.
    pub fn composite(&self) -> String {
        composite(&self.key, &self.value)
    }

    /// The network of which it matches the addresses, if it is one.
    pub fn network(&self) -> Option<IpNet> {
        match self.declared_kind {
            MatchKind::Network => self.value.parse().ok(),
            MatchKind::Exact | MatchKind::Pattern | MatchKind::KeyOnly => None,
        }
    }
}

impl TreeLevel {
    /// A level without nodes.
    pub(crate) const fn new() -> Self {
        Self {
            nodes: Vec::new(),
            by_text: FxHashMap::with_hasher(FxBuildHasher),
            lengths: 0,
            patterns: Patterns::new(),
            networks: None,
            has_ranges: false,
        }
    }

    /// The node with this composite text, to change it.
    pub(crate) fn get_mut(&mut self, composite: &str) -> Option<&mut TreeNode> {
        let number = self.number(composite)?;
        self.nodes.get_mut(number as usize)
    }

    fn number(&self, composite: &str) -> Option<u32> {
        let number = self.by_text.get(composite.as_bytes()).copied();
        number.or_else(|| self.networks.as_ref()?.number(composite))
    }

    /// Reserves capacity for `more` nodes.
    pub fn reserve(&mut self, more: usize) {
        self.nodes.reserve_exact(more);
        self.by_text.reserve(more);
    }

    /// Appends a node with this composite text, which must be new.
    pub(crate) fn push(&mut self, node: TreeNode, composite: String) {
        debug_assert_eq!(composite, node.composite());
        debug_assert!(self.number(&composite).is_none(), "composite keys are unique");
        // A file of at most 16 MiB cannot hold 2^32 nodes, nor can the files of one directory.
        let number = self.nodes.len() as u32;
        if let Some(network) = node.network() {
            self.networks.get_or_insert_default().add(composite, &node.key, network, number);
            self.has_ranges = true;
        } else {
            if let Some(pattern) = Pattern::parse(&composite) {
                self.patterns.add(number, &pattern);
                self.has_ranges = true;
            }
            self.lengths |= length_bit(composite.len());
            self.by_text.insert(composite.into_bytes().into(), number);
        }
        self.nodes.push(node);
    }

    /// Passes the path that `entries` take to `visit`: one step for each entry, or fewer if an entry has no match.
    /// Returns whether every step is literal: the entry has the key of the node and matches in the declared way, and
    /// not only by an equal composite text. Adds the number of tables and patterns tried to `visits`.
    #[inline(always)]
    pub(crate) fn walk<'r>(
        &'r self,
        entries: &[Entry<'_>],
        mut visit: impl FnMut(MatchedNode<'r>),
        visits: &mut usize,
    ) -> bool {
        let mut level = self;
        let mut is_literal = true;
        for entry in entries {
            let only = level.only_step(*entry);
            let Some(step) = only.or_else(|| level.step(*entry, visits)) else { break };
            is_literal &= only.is_some() || step.is_literal(*entry);
            visit(step);
            level = step.node.children();
        }
        is_literal
    }

    /// The path that `entries` take.
    pub(crate) fn steps(&self, entries: &[Entry<'_>]) -> Steps<'_> {
        let mut steps = Steps::new();
        self.walk(entries, |step| steps.push(step), &mut 0);
        steps
    }

    /// The node that an entry with this key matches by its key alone, if its value makes no difference.
    pub(crate) fn for_any_value(&self, key: &[u8]) -> Option<&TreeNode> {
        let is_for_any = |node: &&TreeNode| node.declared_kind == MatchKind::KeyOnly && node.group.is_none();
        let node = self.at(key).filter(is_for_any)?;
        let has_value = |text: &[u8]| text.strip_prefix(key).is_some_and(|rest| rest.starts_with(b"_"));
        let is_only = !self.has_ranges && !self.by_text.keys().any(|text| has_value(text));
        is_only.then_some(node)
    }

    /// Fast path for a level with a single node that `entry` matches literally.
    #[inline(always)]
    fn only_step(&self, entry: Entry<'_>) -> Option<MatchedNode<'_>> {
        let [node] = &*self.nodes else { return None };
        let kind = node.declared_kind;
        let fits = match kind {
            MatchKind::KeyOnly => true,
            MatchKind::Exact => node.value.as_bytes() == entry.value,
            MatchKind::Network | MatchKind::Pattern => false,
        };
        (fits && node.key.as_bytes() == entry.key).then_some(MatchedNode { node, kind })
    }

    fn step(&self, entry: Entry<'_>, visits: &mut usize) -> Option<MatchedNode<'_>> {
        *visits += 1;
        let length = entry.key.len() + 1 + entry.value.len();
        // Skips building the text if nothing can match it.
        if self.has_text_of(length) || self.has_ranges {
            let mut inline = [0; INLINE_BYTES];
            let allocated;
            let text = match inline.get_mut(..length) {
                Some(text) => {
                    let (key, value) = text.split_at_mut(entry.key.len());
                    key.copy_from_slice(entry.key);
                    value[0] = b'_';
                    value[1..].copy_from_slice(entry.value);
                    &*text
                }
                None => {
                    allocated = [entry.key, b"_", entry.value].concat();
                    &*allocated
                }
            };
            if let Some(node) = self.at(text) {
                return Some(MatchedNode { node, kind: MatchKind::Exact });
            }
            if let Some(networks) = &self.networks
                && let Some(number) = networks.longest_match(entry, visits)
            {
                return Some(MatchedNode { node: &self.nodes[number as usize], kind: MatchKind::Network });
            }
            if let Some(number) = self.patterns.first_match(text, visits) {
                return Some(MatchedNode { node: &self.nodes[number as usize], kind: MatchKind::Pattern });
            }
        }
        *visits += 1;
        let node = self.at(entry.key)?;
        Some(MatchedNode { node, kind: MatchKind::KeyOnly })
    }

    /// The nodes in the order of declaration.
    pub(crate) fn nodes(&self) -> &[TreeNode] {
        &self.nodes
    }

    fn has_text_of(&self, length: usize) -> bool {
        self.lengths & length_bit(length) != 0
    }

    fn at(&self, text: &[u8]) -> Option<&TreeNode> {
        if !self.has_text_of(text.len()) {
            return None;
        }
        self.by_text.get(text).map(|number| &self.nodes[*number as usize])
    }
}

fn length_bit(length: usize) -> u64 {
    1 << length.min(63)
}
