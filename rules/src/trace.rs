//! A detailed trace of a lookup, for `/explain`: what was looked up and which other nodes match.

use tollgate_counter::descriptor::{self, Entry};

use crate::{
    descriptor_ref::DescriptorRef,
    keyed_rules::KeyedDomain,
    network,
    pattern::Pattern,
    prefix_tree::{MatchKind, MatchedNode, TreeLevel, TreeNode},
    rule_set::Domain,
};

/// The maximum number of nodes listed for a level in addition to the chosen one.
pub const NODES_MAX: usize = 10;

/// The lookup of one entry.
#[derive(Clone, Debug)]
pub struct LevelTrace<'r> {
    /// The entry that was looked up, as in a descriptor.
    pub text: String,
    /// The value of the group in place of the entry's, escaped, if the chosen node has a group.
    pub counted_as: Option<String>,
    /// The node that was chosen; `None` if no node matches, which ends the lookup.
    pub chosen: Option<DescriptorRef<'r>>,
    /// The first of the nodes that match too but have lower precedence, in the order of declaration.
    pub other_matches: Vec<DescriptorRef<'r>>,
    /// The number of nodes beyond `other_matches` that match but have lower precedence.
    pub other_matches_more: usize,
    /// If no node matches: the first nodes of the level, those with the same key first.
    pub non_matches: Vec<DescriptorRef<'r>>,
    /// The number of nodes of the level beyond `non_matches`.
    pub non_matches_more: usize,
}

impl<'r> KeyedDomain<'r> {
    /// A trace of the lookup: one level for each entry, up to the first entry without a match. Slower than
    /// [`Self::find`]: it visits every node of these levels.
    pub fn trace(self, entries: &[Entry<'_>]) -> Vec<LevelTrace<'r>> {
        let Self { domain, .. } = self;
        let steps = domain.root.steps(entries);
        let mut levels = Vec::new();
        let mut level = &domain.root;
        for (index, entry) in entries.iter().enumerate() {
            let step = steps.get(index);
            levels.push(LevelTrace::new(domain, level, *entry, step));
            let Some(step) = step else { break };
            level = step.node.children();
        }
        levels
    }
}

impl<'r> LevelTrace<'r> {
    fn new(
        domain: &'r Domain,
        level: &'r TreeLevel,
        entry: Entry<'_>,
        step: Option<&MatchedNode<'r>>,
    ) -> Self {
        let text = [entry.key, b"_", entry.value].concat();
        let is_chosen = |node: &TreeNode| step.is_some_and(|step| std::ptr::eq(step.node, node));
        let mut trace = Self {
            text: descriptor::format([(entry.key, entry.value)]),
            counted_as: step
                .filter(|step| step.node.group.is_some())
                .map(|step| descriptor::escaped(&step.grouped_value(entry)).into_owned()),
            chosen: step.map(|step| DescriptorRef::new(domain, step.node, Some(step.kind))),
            other_matches: Vec::new(),
            other_matches_more: 0,
            non_matches: Vec::new(),
            non_matches_more: 0,
        };
        for node in level.nodes().iter().filter(|node| !is_chosen(node)) {
            if let Some(kind) = kind(node, entry, &text) {
                let other = DescriptorRef::new(domain, node, Some(kind));
                keep(other, &mut trace.other_matches, &mut trace.other_matches_more);
            }
        }
        if step.is_none() {
            let (same, other): (Vec<_>, Vec<_>) =
                level.nodes().iter().partition(|node| node.key.as_bytes() == entry.key);
            for node in same.into_iter().chain(other) {
                let other = DescriptorRef::new(domain, node, None);
                keep(other, &mut trace.non_matches, &mut trace.non_matches_more);
            }
        }
        trace
    }
}

fn kind(node: &TreeNode, entry: Entry<'_>, text: &[u8]) -> Option<MatchKind> {
    if let Some(network) = node.network() {
        let contains = network::address(entry.value).is_some_and(|address| network.contains(&address));
        return (contains && node.key.as_bytes() == entry.key).then_some(MatchKind::Network);
    }
    let composite = node.composite();
    if composite.as_bytes() == text {
        return Some(MatchKind::Exact);
    }
    if Pattern::parse(&composite).is_some_and(|pattern| pattern.matches(text)) {
        return Some(MatchKind::Pattern);
    }
    (composite.as_bytes() == entry.key).then_some(MatchKind::KeyOnly)
}

fn keep<'r>(node: DescriptorRef<'r>, retained: &mut Vec<DescriptorRef<'r>>, more: &mut usize) {
    if retained.len() < NODES_MAX { retained.push(node) } else { *more += 1 }
}
