//! The descriptors of a domain as a tree, for programs that compare or list rules.

use ipnet::IpNet;

use crate::{
    Domain, Location, MatchKind, NetworkGroup, Rule,
    pattern::Pattern,
    prefix_tree::{TreeLevel, TreeNode},
};

/// A descriptor of a rule file.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorRef<'r> {
    domain: &'r Domain,
    node: &'r TreeNode,
    matched: Option<MatchKind>,
}

/// Whether it is the same descriptor, matched in the same way.
impl PartialEq for DescriptorRef<'_> {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.node, other.node) && self.matched == other.matched
    }
}

impl Domain {
    /// The descriptors of the first level, in file order.
    pub fn descriptors(&self) -> impl Iterator<Item = DescriptorRef<'_>> {
        self.level(&self.root)
    }

    fn level<'r>(&'r self, level: &'r TreeLevel) -> impl Iterator<Item = DescriptorRef<'r>> {
        level.nodes().iter().map(|node| DescriptorRef::new(self, node, None))
    }
}

impl<'r> DescriptorRef<'r> {
    pub(crate) fn new(domain: &'r Domain, node: &'r TreeNode, matched: Option<MatchKind>) -> Self {
        Self { domain, node, matched }
    }

    /// How the entry that was looked up matches it; `None` if it does not, or if none was looked up.
    pub fn matched(&self) -> Option<MatchKind> {
        self.matched
    }

    /// Whether all values that match as the entry that was looked up share a counter.
    pub fn is_shared(&self) -> bool {
        self.node.share_threshold && self.matched.is_some_and(MatchKind::has_several_values)
    }

    /// The networks that are counted as one key.
    pub fn group(&self) -> Option<NetworkGroup> {
        self.node.group
    }

    /// The key as written.
    pub fn key(&self) -> &'r str {
        &self.node.key
    }

    /// The value as written, a network in its one spelling; empty if the descriptor has none.
    pub fn value(&self) -> &'r str {
        &self.node.value
    }

    /// The text that entries are compared with: `key_value`, or `key`. It is unique in its level.
    pub fn composite(&self) -> String {
        self.node.composite()
    }

    /// The way in which entries match the descriptor.
    pub fn kind(&self) -> MatchKind {
        self.node.declared_kind
    }

    /// The network of which it matches the addresses, if it is one.
    pub fn network(&self) -> Option<IpNet> {
        self.node.network()
    }

    /// Whether the descriptor is a pattern that matches `text`, which is `key_value`.
    pub fn matches(&self, text: &str) -> bool {
        Pattern::parse(&self.composite()).is_some_and(|pattern| pattern.matches(text.as_bytes()))
    }

    /// The rule, if the descriptor has one.
    pub fn rule(&self) -> Option<&'r Rule> {
        self.node.rule.map(|rule| &self.domain.rules[rule])
    }

    /// The location in the rule file or resource.
    pub fn location(&self) -> &'r Location {
        &self.node.location
    }

    /// Whether all values that match the pattern share a counter.
    pub fn share_threshold(&self) -> bool {
        self.node.share_threshold
    }

    /// Whether names in metrics contain the value.
    pub fn value_to_metric(&self) -> bool {
        self.node.value_to_metric
    }

    /// The nested descriptors, in file order.
    pub fn descriptors(&self) -> impl Iterator<Item = Self> + use<'r> {
        self.domain.level(self.node.children())
    }
}
