//! The way from a descriptor to its rule, told at length: what was looked up, what else would have matched.

use crate::{
    descriptor::Entry,
    rules::{
        Place,
        pattern::Pattern,
        tree::{Hop, Hops, How, Level, Node},
    },
};

/// How many nodes of a level are told of besides the one that is chosen.
pub const NODES_MAX: usize = 10;

/// What one entry was looked up among.
#[derive(Clone, Debug)]
pub struct LevelTrace<'r> {
    /// The text that was looked up: key and value.
    pub text: String,
    /// The node that matched; `None` where none did, which ends the way.
    pub chosen: Option<NodeTrace<'r>>,
    /// Nodes that match too but lose, in the order of declaration; the first of them.
    pub losers: Vec<NodeTrace<'r>>,
    /// How many losers there are beyond these.
    pub losers_more: usize,
    /// Where none matches: nodes that are there, those with the same key first; the first of them.
    pub strangers: Vec<NodeTrace<'r>>,
    /// How many strangers there are beyond these.
    pub strangers_more: usize,
}

/// One descriptor of a rule file.
#[derive(Clone, Copy, Debug)]
pub struct NodeTrace<'r> {
    /// Its key as written.
    pub key: &'r str,
    /// Its value as written; empty where it has none.
    pub value: &'r str,
    /// How it matches; `None` where it does not.
    pub how: Option<How>,
    /// Where it is written.
    pub place: &'r Place,
    /// Whether it has a limit.
    pub has_rule: bool,
    /// Whether all values that match it here count together.
    pub is_shared: bool,
    /// Whether there are descriptors below it.
    pub has_children: bool,
}

/// One level for each entry, up to the first that nothing matches.
pub(super) fn levels<'r>(root: &'r Level, entries: &[Entry<'_>]) -> Vec<LevelTrace<'r>> {
    let mut hops = Hops::new();
    root.way(entries, &mut hops);
    let mut levels = Vec::new();
    let mut level = root;
    for (index, entry) in entries.iter().enumerate() {
        let hop = hops.get(index);
        levels.push(LevelTrace::of(level, *entry, hop));
        let Some(hop) = hop else { break };
        level = &hop.node.children;
    }
    levels
}

impl<'r> LevelTrace<'r> {
    fn of(level: &'r Level, entry: Entry<'_>, hop: Option<&Hop<'r>>) -> Self {
        let text = format!("{}_{}", entry.key, entry.value);
        let is_chosen = |node: &Node| hop.is_some_and(|hop| std::ptr::eq(hop.node, node));
        let mut trace = Self {
            text,
            chosen: hop.map(|hop| NodeTrace::of(hop.node, Some(hop.how))),
            losers: Vec::new(),
            losers_more: 0,
            strangers: Vec::new(),
            strangers_more: 0,
        };
        for node in level.nodes().iter().filter(|node| !is_chosen(node)) {
            if let Some(how) = how(node, entry, &trace.text) {
                let loser = NodeTrace::of(node, Some(how));
                keep(loser, &mut trace.losers, &mut trace.losers_more);
            }
        }
        if hop.is_none() {
            let (same, other): (Vec<_>, Vec<_>) =
                level.nodes().iter().partition(|node| *node.key == *entry.key);
            for node in same.into_iter().chain(other) {
                keep(NodeTrace::of(node, None), &mut trace.strangers, &mut trace.strangers_more);
            }
        }
        trace
    }
}

impl<'r> NodeTrace<'r> {
    fn of(node: &'r Node, how: Option<How>) -> Self {
        Self {
            key: &node.key,
            value: &node.value,
            how,
            place: &node.place,
            has_rule: node.rule.is_some(),
            is_shared: node.share_threshold && how == Some(How::Pattern),
            has_children: !node.children.nodes().is_empty(),
        }
    }
}

fn how(node: &Node, entry: Entry<'_>, text: &str) -> Option<How> {
    let composite = node.composite();
    if composite == text {
        return Some(How::Exact);
    }
    if Pattern::parse(&composite).is_some_and(|pattern| pattern.matches(text.as_bytes())) {
        return Some(How::Pattern);
    }
    (composite == entry.key).then_some(How::KeyOnly)
}

fn keep<'r>(node: NodeTrace<'r>, kept: &mut Vec<NodeTrace<'r>>, more: &mut usize) {
    if kept.len() < NODES_MAX { kept.push(node) } else { *more += 1 }
}
