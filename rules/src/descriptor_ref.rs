//! The descriptors of a domain as a tree, for programs that compare or list rules.

use crate::{
    Domain, Location, MatchKind, Network, Rule,
    pattern::Pattern,
    prefix_tree::{TreeLevel, TreeNode},
};

/// A descriptor of a rule file.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorRef<'r> {
    domain: &'r Domain,
    node: &'r TreeNode,
}

impl Domain {
    /// The descriptors of the first level, in file order.
    pub fn descriptors(&self) -> impl Iterator<Item = DescriptorRef<'_>> {
        self.level(&self.root)
    }

    fn level<'r>(&'r self, level: &'r TreeLevel) -> impl Iterator<Item = DescriptorRef<'r>> {
        level.nodes().iter().map(|node| DescriptorRef { domain: self, node })
    }
}

impl<'r> DescriptorRef<'r> {
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
    pub fn network(&self) -> Option<Network> {
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
