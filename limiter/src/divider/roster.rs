//! The subscribers of one limit.

use std::{collections::BTreeMap, ops::Index};

use serde::{Deserialize, Serialize};

use crate::divider::SubscriberId;

/// The states of subscribers, ascending by their ids. A division visits all of them several times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Roster<S> {
    // Invariant: ascending and unique ids.
    #[serde(with = "as_map", bound(serialize = "S: Serialize", deserialize = "S: Deserialize<'de>"))]
    each: Vec<(SubscriberId, S)>,
}

/// The state of a subscriber.
pub(super) trait Subscribed {
    /// Its client is gone. What it has been given is in force until its time is over.
    fn end(&mut self);
}

impl<S> Default for Roster<S> {
    fn default() -> Self {
        Self { each: Vec::new() }
    }
}

impl<S> Roster<S> {
    /// The number of subscribers.
    pub(super) fn len(&self) -> usize {
        self.each.len()
    }

    /// Whether this is a subscriber.
    pub(super) fn has(&self, id: SubscriberId) -> bool {
        self.position(id).is_ok()
    }

    pub(super) fn get(&self, id: SubscriberId) -> Option<&S> {
        self.position(id).ok().map(|index| &self[index])
    }

    pub(super) fn get_mut(&mut self, id: SubscriberId) -> Option<&mut S> {
        let index = self.position(id).ok()?;
        Some(&mut self.each[index].1)
    }

    pub(super) fn get_or_insert_with(&mut self, id: SubscriberId, new: impl FnOnce() -> S) -> &mut S {
        let index = self.position(id).unwrap_or_else(|index| {
            self.each.insert(index, (id, new()));
            index
        });
        &mut self.each[index].1
    }

    /// Removes a subscriber if `goes` returns true.
    pub(super) fn remove_if(&mut self, id: SubscriberId, goes: impl FnOnce(&S) -> bool) -> Option<S> {
        let index = self.position(id).ok()?;
        goes(&self.each[index].1).then(|| self.each.remove(index).1)
    }

    pub(super) fn retain(&mut self, mut keeps: impl FnMut(&S) -> bool) {
        self.each.retain(|(_, state)| keeps(state));
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (SubscriberId, &S)> {
        self.each.iter().map(|(id, state)| (*id, state))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (SubscriberId, &mut S)> {
        self.each.iter_mut().map(|(id, state)| (*id, state))
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = SubscriberId> {
        self.each.iter().map(|(id, _)| *id)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &S> + Clone {
        self.each.iter().map(|(_, state)| state)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut S> {
        self.each.iter_mut().map(|(_, state)| state)
    }

    /// The subscriber at a position.
    pub(super) fn at_mut(&mut self, index: usize) -> &mut S {
        &mut self.each[index].1
    }

    /// Adds the subscribers of another roster; `merge` adds the state of one that is known.
    pub(super) fn add(&mut self, other: Self, mut merge: impl FnMut(&mut S, S)) {
        for (id, state) in other.each {
            match self.position(id) {
                Ok(index) => merge(&mut self.each[index].1, state),
                Err(index) => self.each.insert(index, (id, state)),
            }
        }
    }

    fn position(&self, id: SubscriberId) -> Result<usize, usize> {
        self.each.binary_search_by_key(&id, |(id, _)| *id)
    }
}

impl<S: Subscribed> Roster<S> {
    /// Ends a subscriber.
    pub(super) fn leave(&mut self, id: SubscriberId) {
        if let Some(state) = self.get_mut(id) {
            state.end();
        }
    }

    /// Ends the subscribers of a replica.
    pub(super) fn leave_all(&mut self, replica: u64) {
        let of_replica = |(id, _): &(SubscriberId, &mut S)| id.replica == replica;
        self.iter_mut().filter(of_replica).for_each(|(_, state)| state.end());
    }
}

/// The state of the subscriber at a position.
impl<S> Index<usize> for Roster<S> {
    type Output = S;

    fn index(&self, index: usize) -> &S {
        &self.each[index].1
    }
}

/// A roster is sent as a map. Another replica may send ids in any order.
mod as_map {
    use serde::{Deserializer, Serializer};

    use super::*;

    pub(super) fn serialize<S: Serialize, T: Serializer>(
        each: &[(SubscriberId, S)],
        serializer: T,
    ) -> Result<T::Ok, T::Error> {
        serializer.collect_map(each.iter().map(|(id, state)| (id, state)))
    }

    pub(super) fn deserialize<'de, S: Deserialize<'de>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<(SubscriberId, S)>, D::Error> {
        Ok(BTreeMap::deserialize(deserializer)?.into_iter().collect())
    }
}
