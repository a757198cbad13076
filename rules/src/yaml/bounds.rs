//! What every reader of YAML holds to: bounds, and which keys a mapping can have.

use std::collections::{HashMap, hash_map::Entry};

use crate::yaml::{Mark, Resolved, Scalar, YamlPair};

/// The maximum depth of nested lists and mappings.
pub const DEPTH_MAX: usize = 32;
/// The maximum number of nodes of a file with all aliases expanded. A scalar counts one more for every 64 bytes.
pub const WEIGHT_MAX: usize = 4_000_000;
/// Mappings of up to this many keys are searched for duplicates linearly, which allocates nothing.
const LINEAR_SEARCH_MAX: usize = 16;

/// The weight of a scalar with this text.
pub(super) fn weight_of(text: &str) -> usize {
    1 + text.len() / 64
}

/// The indices of pairs with a key that an earlier pair has, and the position of that pair.
pub(super) fn duplicates(pairs: &[YamlPair<'_>]) -> Vec<(usize, Mark)> {
    if pairs.len() <= LINEAR_SEARCH_MAX {
        let first = |(index, pair): (usize, &YamlPair<'_>)| {
            let before = pairs[..index].iter().find(|before| before.key == pair.key);
            before.map(|before| (index, before.mark))
        };
        return pairs.iter().enumerate().filter_map(first).collect();
    }
    let mut firsts: HashMap<&str, Mark> = HashMap::with_capacity(pairs.len());
    let mut found = Vec::new();
    for (index, pair) in pairs.iter().enumerate() {
        match firsts.entry(&pair.key) {
            Entry::Occupied(first) => found.push((index, *first.get())),
            Entry::Vacant(index) => {
                index.insert(pair.mark);
            }
        }
    }
    found
}

/// Whether a scalar is allowed as a key. A single letter such as `y` is a name here, although YAML 1.1 reads it as a
/// boolean.
pub(super) fn is_key(scalar: &Scalar<'_>) -> bool {
    match scalar.resolve() {
        Resolved::Text => true,
        Resolved::Bool(_) => scalar.text.len() == 1,
        Resolved::Null | Resolved::Integer(_) | Resolved::Float(_) => false,
    }
}
