//! The subscribers of one limit.

use std::{collections::BTreeMap, iter, ops::Range};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::subscribers::SubscriberId;

/// The room that a roster keeps after others have gone, as a multiple of its subscribers.
const ROOM_MAX: usize = 4;

/// The states of subscribers by their ids. A division visits all of them several times, a report one of them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SubscriberRoster<S> {
    // Invariant: ascending and unique. Apart from the states, so that a search reads little memory.
    ids: Vec<SubscriberId>,
    // Invariant: as many as ids, in their order.
    states: Vec<S>,
}

/// The state of a subscriber.
pub(super) trait Subscribed {
    /// Marks the client as gone. What it was granted is in force until its time is over.
    fn end(&mut self);
}

impl<S> Default for SubscriberRoster<S> {
    fn default() -> Self {
        Self { ids: Vec::new(), states: Vec::new() }
    }
}

impl<S> SubscriberRoster<S> {
    /// The number of subscribers.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// The memory of the subscribers, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.ids.capacity() * size_of::<SubscriberId>() + self.states.capacity() * size_of::<S>()
    }

    /// The number of subscribers of a caller, whose streams may be at several replicas.
    pub(super) fn count_of_caller(&self, caller: u32) -> usize {
        self.ranges_of_caller(caller).map(|range| range.len()).sum()
    }

    /// The subscribers of a caller.
    pub(super) fn of_caller(&self, caller: u32) -> impl Iterator<Item = (SubscriberId, &S)> {
        let all = move |range: Range<usize>| self.ids[range.clone()].iter().copied().zip(&self.states[range]);
        self.ranges_of_caller(caller).flat_map(all)
    }

    /// Where the subscribers of a caller are: one range for each replica.
    fn ranges_of_caller(&self, caller: u32) -> impl Iterator<Item = Range<usize>> {
        let mut from = 0;
        iter::from_fn(move || {
            let replica = self.ids.get(from)?.replica;
            let place = (replica, caller);
            let begin = self.ids.partition_point(|id| (id.replica, id.caller()) < place);
            let end = self.ids.partition_point(|id| (id.replica, id.caller()) <= place);
            from = self.ids.partition_point(|id| id.replica <= replica);
            Some(begin..end)
        })
    }

    /// Whether this is a subscriber.
    pub(super) fn has(&self, id: SubscriberId) -> bool {
        self.position(id).is_ok()
    }

    pub(super) fn get_mut(&mut self, id: SubscriberId) -> Option<&mut S> {
        self.position(id).ok().map(|index| &mut self.states[index])
    }

    pub(super) fn get_or_insert_with(&mut self, id: SubscriberId, new: impl FnOnce() -> S) -> &mut S {
        let index = self.position(id).unwrap_or_else(|index| self.insert_at(index, id, new()));
        &mut self.states[index]
    }

    /// Removes a subscriber if `goes` returns true.
    pub(super) fn remove_if(&mut self, id: SubscriberId, goes: impl FnOnce(&S) -> bool) -> Option<S> {
        let index = self.position(id).ok()?;
        goes(&self.states[index]).then(|| {
            self.ids.remove(index);
            self.states.remove(index)
        })
    }

    /// Removes subscribers for which `keeps` returns false.
    pub(super) fn retain(&mut self, mut keeps: impl FnMut(&S) -> bool) {
        let Some(first) = self.states.iter().position(|state| !keeps(state)) else { return };
        let rest = self.ids.split_off(first).into_iter().zip(self.states.split_off(first));
        for (id, state) in rest.skip(1) {
            if keeps(&state) {
                self.ids.push(id);
                self.states.push(state);
            }
        }
        let number = self.len();
        if self.ids.capacity() > ROOM_MAX * number {
            self.ids.shrink_to(2 * number);
            self.states.shrink_to(2 * number);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (SubscriberId, &S)> {
        self.ids.iter().copied().zip(&self.states)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (SubscriberId, &mut S)> {
        self.ids.iter().copied().zip(&mut self.states)
    }

    pub(super) fn ids(&self) -> &[SubscriberId] {
        &self.ids
    }

    /// The states, in the order of the ids of their subscribers.
    pub(super) fn states(&self) -> &[S] {
        &self.states
    }

    /// The states for changes, in the order of the ids of their subscribers.
    pub(super) fn states_mut(&mut self) -> &mut [S] {
        &mut self.states
    }

    /// Adds the subscribers of another roster; `merge` adds the state of one that is known.
    pub(super) fn add(&mut self, other: Self, mut merge: impl FnMut(&mut S, S)) {
        for (id, state) in other.ids.into_iter().zip(other.states) {
            match self.position(id) {
                Ok(index) => merge(&mut self.states[index], state),
                Err(index) => {
                    self.insert_at(index, id, state);
                }
            }
        }
    }

    fn position(&self, id: SubscriberId) -> Result<usize, usize> {
        self.ids.binary_search(&id)
    }

    fn insert_at(&mut self, index: usize, id: SubscriberId, state: S) -> usize {
        if self.ids.is_empty() {
            // Many limits have one subscriber only, and a vector begins with room for four.
            self.ids.reserve_exact(1);
            self.states.reserve_exact(1);
        }
        self.ids.insert(index, id);
        self.states.insert(index, state);
        index
    }
}

impl<S: Subscribed> SubscriberRoster<S> {
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

/// A roster is serialized as a map from ids to states.
impl<S: Serialize> Serialize for SubscriberRoster<S> {
    fn serialize<T: Serializer>(&self, serializer: T) -> Result<T::Ok, T::Error> {
        serializer.collect_map(self.iter())
    }
}

/// A roster is read from a map with ids in any order.
impl<'de, S: Deserialize<'de>> Deserialize<'de> for SubscriberRoster<S> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let each: BTreeMap<SubscriberId, S> = BTreeMap::deserialize(deserializer)?;
        let mut ids = Vec::with_capacity(each.len());
        let mut states = Vec::with_capacity(each.len());
        for (id, state) in each {
            ids.push(id);
            states.push(state);
        }
        Ok(Self { ids, states })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(stream: u64) -> SubscriberId {
        SubscriberId { replica: stream % 2, stream, bucket: 0 }
    }

    #[test]
    fn subscribers_of_a_caller_are_counted_at_all_replicas() {
        let mut roster = SubscriberRoster::default();
        let of = |caller: u64, number: u64| caller << u32::BITS | number;
        for (replica, stream) in [(1, of(1, 1)), (1, of(2, 2)), (1, of(2, 3)), (2, of(2, 1)), (3, of(3, 9))] {
            roster.get_or_insert_with(SubscriberId { replica, stream, bucket: 0 }, || 0);
        }
        assert_eq!([1, 2, 3, 4].map(|caller| roster.count_of_caller(caller)), [1, 3, 1, 0]);
        let streams: Vec<u64> = roster.of_caller(2).map(|(id, _)| id.stream).collect();
        assert_eq!(streams, [of(2, 2), of(2, 3), of(2, 1)]);
    }

    #[test]
    fn roster_has_no_room_for_those_that_are_not_there() {
        let rooms = |roster: &SubscriberRoster<u64>| [roster.ids.capacity(), roster.states.capacity()];
        let mut roster = SubscriberRoster::default();
        roster.get_or_insert_with(id(0), || 0);
        assert_eq!(rooms(&roster), [1, 1]);
        let bytes = postcard::to_stdvec(&roster).unwrap();
        assert_eq!(rooms(&postcard::from_bytes(&bytes).unwrap()), [1, 1]);
        for number in 1..4_096 {
            roster.get_or_insert_with(id(number), || number);
        }
        roster.retain(|number| *number < 10);
        assert_eq!(rooms(&roster), [20, 20]);
    }

    proptest! {
        #[test]
        fn roster_is_a_map_in_the_order_of_ids(
            steps in prop::collection::vec((0..5_u8, 0..12_u64, 0..9_u32), 0..60),
        ) {
            let (mut roster, mut map) = (SubscriberRoster::default(), BTreeMap::new());
            for (step, stream, state) in steps {
                match step {
                    0 => {
                        prop_assert_eq!(roster.remove_if(id(stream), |_| true), map.remove(&id(stream)));
                    }
                    1 => {
                        roster.retain(|kept| *kept != state);
                        map.retain(|_, kept| *kept != state);
                    }
                    2 => {
                        let mut other = SubscriberRoster::default();
                        other.get_or_insert_with(id(stream), || state);
                        roster.add(other, |known, more| *known += more);
                        *map.entry(id(stream)).or_default() += state;
                    }
                    _ => {
                        let (new, known) = (|| state, *map.entry(id(stream)).or_insert(state));
                        prop_assert_eq!(*roster.get_or_insert_with(id(stream), new), known);
                    }
                }
                prop_assert!(roster.iter().eq(map.iter().map(|(id, state)| (*id, state))));
                let bytes = postcard::to_stdvec(&roster).unwrap();
                prop_assert_eq!(&bytes, &postcard::to_stdvec(&map).unwrap());
                prop_assert_eq!(postcard::from_bytes::<SubscriberRoster<u32>>(&bytes).unwrap(), roster.clone());
            }
        }
    }
}
