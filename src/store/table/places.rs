//! Counters by their keys, in open addressing: each lies as near behind the home of its key as there was a place.
//! Nothing but the places themselves says where a key is, so a look-up waits for one line from memory.

use crate::{descriptor::Key, store::cell::Cell};

/// The fewest places, where there are any.
const FEWEST: usize = 4;
/// The fraction of the golden section, whose multiples are spread evenly.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Places for counters, some of them empty.
#[derive(Debug, Default)]
pub(super) struct Places {
    // Invariant: at most three of four are taken, and from the home of a key to its place all are.
    each: Box<[Place]>,
    taken: usize,
    factor: u64,
}

/// Room for one counter. Two are a line of the processor's cache, and none is in two lines.
#[derive(Debug, Default)]
#[repr(align(32))]
struct Place(Option<(Key, Cell)>);

// The bytes for each counter follow from this, and so does what docs/algorithms.md says of them.
const _: () = assert!(size_of::<Place>() == 32);

/// The bytes of so many places.
pub(super) const fn bytes_of(places: usize) -> usize {
    places * size_of::<Place>()
}

/// How many of so many places may be taken. More, and the runs of taken ones would become long.
pub(super) const fn capacity_of(places: usize) -> usize {
    places * 3 / 4
}

/// The places that so many counters need.
pub(super) fn places_for(counters: usize) -> usize {
    if counters == 0 { 0 } else { (counters * 4).div_ceil(3).max(FEWEST) }
}

/// How many places there are after so many, when they are all that may be taken.
pub(super) const fn next_after(places: usize) -> usize {
    if places < FEWEST { FEWEST } else { places + places / 2 }
}

impl Places {
    /// So many empty places.
    pub(super) fn new(places: usize) -> Self {
        // Were keys in the same order in all tables, then counters that are moved one by one in the order of theirs
        // would all come to the beginning of another that is still small, each looking longer for a place than the one
        // before. So the order depends on the number of places. The factor is odd, so that no bit of a key is lost.
        let factor = GOLDEN.wrapping_mul(places as u64) | 1;
        Self { each: (0..places).map(|_| Place::default()).collect(), taken: 0, factor }
    }

    /// How many places there are.
    pub(super) fn number(&self) -> usize {
        self.each.len()
    }

    /// How many counters there are.
    pub(super) fn len(&self) -> usize {
        self.taken
    }

    /// Whether as many are taken as may be.
    pub(super) fn is_full(&self) -> bool {
        self.taken == capacity_of(self.number())
    }

    #[inline]
    pub(super) fn get(&self, key: Key) -> Option<&Cell> {
        self.each[self.find(key)?].0.as_ref().map(|(_, cell)| cell)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: Key) -> Option<&mut Cell> {
        let index = self.find(key)?;
        self.each[index].0.as_mut().map(|(_, cell)| cell)
    }

    /// Takes a place for a key that has none. They are not full.
    pub(super) fn put(&mut self, key: Key, cell: Cell) {
        debug_assert!(!self.is_full() && self.find(key).is_none());
        self.taken += 1;
        self.settle(key, cell);
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<Cell> {
        let mut index = self.find(key)?;
        let (_, cell) = self.each[index].0.take()?;
        self.taken -= 1;
        // What follows may be nearer to its home now.
        index = self.after(index);
        while self.each[index].0.is_some() {
            self.settle_again(index);
            index = self.after(index);
        }
        Some(cell)
    }

    /// Forgets all counters but those for which `stays` says so, which is asked once for each.
    pub(super) fn retain(&mut self, mut stays: impl FnMut(&Cell) -> bool) {
        // A run of taken places is gone through from its beginning, so from behind an empty place on.
        let Some(mut index) = self.each.iter().position(|place| place.0.is_none()) else { return };
        let mut has_gap = false;
        for _ in 0..self.number() {
            index = self.after(index);
            match &self.each[index].0 {
                None => has_gap = false,
                Some((_, cell)) if stays(cell) => {
                    if has_gap {
                        self.settle_again(index);
                    }
                }
                Some(_) => {
                    self.each[index].0 = None;
                    self.taken -= 1;
                    has_gap = true;
                }
            }
        }
    }

    /// Moves all counters into so many places, which are enough.
    pub(super) fn resize(&mut self, places: usize) {
        let before = std::mem::replace(self, Self::new(places));
        before.into_cells().for_each(|(key, cell)| self.put(key, cell));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(Key, Cell)> {
        self.each.iter().filter_map(|place| place.0.as_ref())
    }

    pub(super) fn into_cells(self) -> impl Iterator<Item = (Key, Cell)> {
        self.each.into_iter().filter_map(|place| place.0)
    }

    #[inline]
    fn find(&self, key: Key) -> Option<usize> {
        let mut index = self.home(key);
        loop {
            // Where there are no places at all, nor is this one.
            let (other, _) = self.each.get(index)?.0.as_ref()?;
            if *other == key {
                return Some(index);
            }
            index = self.after(index);
        }
    }

    /// Puts a counter into the first empty place from its home on.
    fn settle(&mut self, key: Key, cell: Cell) {
        let mut index = self.home(key);
        while self.each[index].0.is_some() {
            index = self.after(index);
        }
        self.each[index].0 = Some((key, cell));
    }

    /// Moves a counter nearer to its home, where there is an empty place now.
    fn settle_again(&mut self, index: usize) {
        if let Some((key, cell)) = self.each[index].0.take() {
            self.settle(key, cell);
        }
    }

    /// Where a key belongs. It is a share of the places, not a rest, so they may be of any number.
    #[inline]
    fn home(&self, key: Key) -> usize {
        let share = u128::from(key.low().wrapping_mul(self.factor));
        // Less than the number of places.
        ((share * self.number() as u128) >> u64::BITS) as usize
    }

    #[inline]
    fn after(&self, index: usize) -> usize {
        if index + 1 < self.number() { index + 1 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::store::table::tests::{cell, key};

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Put(usize),
        Remove(usize),
        Forget { every: u64, from: u64 },
        Resize(usize),
    }

    fn any_step(resizes: bool) -> impl Strategy<Value = Step> {
        prop_oneof![
            12 => (0..48_usize).prop_map(Step::Put),
            4 => (0..48_usize).prop_map(Step::Remove),
            1 => (1..5_u64, 0..5_u64).prop_map(|(every, from)| Step::Forget { every, from }),
            u32::from(resizes) => (0..40_usize).prop_map(Step::Resize),
        ]
    }

    /// Keys whose homes are the last three of so many places.
    fn keys_at_the_end(places: usize) -> Vec<Key> {
        let empty = Places::new(places);
        (0..).map(key).filter(|key| places - 3 <= empty.home(*key)).take(48).collect()
    }

    /// Takes the steps, and compares with what a map holds after each.
    fn is_as_a_map(mut places: Places, keys: &[Key], steps: &[Step]) {
        let mut map = HashMap::new();
        for (step, deed) in steps.iter().enumerate() {
            let value = step as u64;
            match *deed {
                Step::Put(index) => {
                    if let Some(kept) = places.get_mut(keys[index]) {
                        *kept = cell(value);
                    } else if places.is_full() {
                        continue;
                    } else {
                        places.put(keys[index], cell(value));
                    }
                    map.insert(keys[index], cell(value));
                }
                Step::Remove(index) => assert_eq!(places.remove(keys[index]), map.remove(&keys[index])),
                Step::Forget { every, from } => {
                    let stays = |cell: &Cell| cell.idle_at().as_nanos() % every != from;
                    let (all, mut asked) = (places.len(), 0);
                    places.retain(|cell| {
                        asked += 1;
                        stays(cell)
                    });
                    map.retain(|_, cell| stays(cell));
                    assert_eq!(asked, all, "each is asked once");
                }
                Step::Resize(more) => places.resize(places_for(places.len() + more)),
            }
            assert!(places.len() == map.len() && places.len() <= capacity_of(places.number()));
            assert_eq!(places.iter().cloned().collect::<HashMap<_, _>>(), map);
            assert_eq!(places.iter().count(), map.len(), "none is there twice");
            keys.iter().for_each(|key| assert_eq!(places.get(*key), map.get(key)));
        }
    }

    proptest! {
        #[test]
        fn places_hold_what_a_map_would(steps in prop::collection::vec(any_step(true), 1..120)) {
            let keys: Vec<Key> = (0..48).map(key).collect();
            is_as_a_map(Places::default(), &keys, &steps);
        }

        #[test]
        fn a_run_that_goes_on_from_the_beginning_loses_and_doubles_nothing(
            places in 4..64_usize,
            steps in prop::collection::vec(any_step(false), 1..120),
        ) {
            is_as_a_map(Places::new(places), &keys_at_the_end(places), &steps);
        }

        #[test]
        fn as_many_places_as_counters_need_are_enough_and_no_more_than_that(counters in 4..1_000_000_usize) {
            let places = places_for(counters);
            prop_assert!(capacity_of(places - 1) < counters && counters <= capacity_of(places));
        }
    }

    #[test]
    fn a_counter_takes_43_to_64_bytes() {
        let mut places = next_after(0);
        while places < 1 << 40 {
            let (full, larger) = (capacity_of(places), next_after(places));
            assert!(places < FEWEST + 4 || 128 * full <= 3 * bytes_of(places));
            assert!(bytes_of(larger) <= 64 * (full + 1) && full < capacity_of(larger));
            places = larger;
        }
    }

    #[test]
    fn counters_that_come_in_the_order_of_another_table_are_found_as_soon_as_others() {
        for number in [300, 5_000, 6_667, 20_000] {
            let mut from = Places::new(places_for(number));
            (0..number as u64).for_each(|index| from.put(key(index), cell(index)));
            let mut into = Places::default();
            for (key, cell) in from.into_cells() {
                if into.is_full() {
                    let (all, longest) = into.ways();
                    // Of keys in no order too: 1.4 at the mean, in few places by chance more than 4.
                    assert!(all <= 5 * into.len(), "{all} places for {} counters", into.len());
                    assert!(longest <= 200, "{longest} places for one of {} counters", into.len());
                    into.resize(next_after(into.number()));
                }
                into.put(key, cell);
            }
        }
    }

    impl Places {
        /// How many places are looked at beyond their homes to find all counters, and to find the furthest.
        pub(in crate::store::table) fn ways(&self) -> (usize, usize) {
            let number = self.number();
            let taken = self.each.iter().enumerate();
            let taken = taken.filter_map(|(index, place)| Some((index, place.0.as_ref()?.0)));
            let ways = taken.map(|(index, key)| (index + number - self.home(key)) % number);
            ways.fold((0, 0), |(all, longest), way| (all + way, longest.max(way)))
        }
    }
}
