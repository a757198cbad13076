//! The descriptors of a domain as a tree, for programs that compare or list rules.

use crate::{
    pattern::Pattern,
    prefix_tree::{MatchKind, TreeLevel, TreeNode},
    rule::Rule,
    rule_set::Domain,
};

/// A descriptor of a rule file.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorRef<'r> {
    domain: &'r Domain,
    /// What the rule file says of the descriptor.
    pub node: &'r TreeNode,
    /// How the entry that was looked up matches the descriptor; `None` if it does not, or if none was looked up.
    pub matched: Option<MatchKind>,
}

/// Compares the descriptors by identity, and how they were matched.
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
    /// The descriptor `node` of `domain`, which the entry that was looked up matches as `matched` says.
    pub(crate) fn new(domain: &'r Domain, node: &'r TreeNode, matched: Option<MatchKind>) -> Self {
        Self { domain, node, matched }
    }

    /// Whether all values that match as the entry that was looked up share a counter.
    pub fn is_shared(&self) -> bool {
        self.node.share_threshold && self.matched.is_some_and(MatchKind::has_several_values)
    }

    /// Whether the descriptor is a pattern that matches `text`, which is `key_value`.
    pub fn matches(&self, text: &str) -> bool {
        Pattern::parse(&self.node.composite()).is_some_and(|pattern| pattern.matches(text.as_bytes()))
    }

    /// The rule, if the descriptor has one.
    pub fn rule(&self) -> Option<&'r Rule> {
        self.node.rule.map(|rule| &self.domain.rules[rule])
    }

    /// The nested descriptors, in file order.
    pub fn descriptors(&self) -> impl Iterator<Item = Self> + use<'r> {
        self.domain.level(self.node.children())
    }
}
