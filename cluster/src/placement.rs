//! Placement: the intended owner of each slot, a pure function of the members that serve.
//!
//! Rendezvous hashing ranks the members for each slot (Thaler and Ravishankar, 1998). By itself it leaves the largest
//! share well above the mean, so each member accepts at most [`SHARE_MAX_PERCENT`] of the mean: slots propose to
//! members in the order of their ranking, and a member with too many slots rejects those that rank it lowest. This is
//! the stable matching of Gale and Shapley (1962): every replica computes the same result, and adding or removing a
//! member changes little.

use std::{cmp::Reverse, collections::BinaryHeap, hash::Hasher};

use siphasher::sip::SipHasher13;
use tollgate_store::Slot;

use crate::member::MemberId;

/// The most slots of one member, in percent of the mean.
const SHARE_MAX_PERCENT: usize = 105;

/// The intended owner of each slot, and its backup owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Placement {
    members: Vec<MemberId>,
    ranking: Ranking,
    // One entry per slot; empty if there are no members.
    slots: Vec<SlotPlacement>,
}

/// The placement of one slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlotPlacement {
    owner: MemberId,
    /// The intended owner if `owner` departs, so that a backup is where it will be needed.
    backup_owner: Option<MemberId>,
}

impl Placement {
    /// The placement of `slots` slots on `members`, which are sorted. `self` is one of as many slots.
    pub(crate) fn changed_to(&self, members: Vec<MemberId>, slots: usize) -> Self {
        debug_assert!(members.is_sorted());
        if members.is_empty() {
            return Self::default();
        }
        let ranking = self.ranking.changed_to(&self.members, &members, slots);
        let all = SlotMatching::for_all(&ranking, members.len());
        // The backup owner of a slot is its owner in a matching without its owner. A member less never gives a slot a
        // better owner, so each such matching continues from the one of all members with the same maximum.
        let mut backup_owners = vec![None; slots];
        if members.len() > 1 {
            let more = SlotMatching::for_all(&ranking, members.len() - 1);
            let mut without = more.clone();
            for member in 0..members.len() {
                without.clone_from(&more);
                without.remove(member);
                for Reverse((_, slot)) in &all.accepted[member] {
                    backup_owners[*slot] = Some(members[without.owner(*slot)]);
                }
            }
        }
        let placement =
            |(slot, backup_owner)| SlotPlacement { owner: members[all.owner(slot)], backup_owner };
        let slots = backup_owners.into_iter().enumerate().map(placement).collect();
        Self { members, ranking, slots }
    }

    /// The members, sorted.
    pub(crate) fn members(&self) -> &[MemberId] {
        &self.members
    }

    /// The intended owner of `slot`; `None` if there are no members.
    pub(crate) fn owner(&self, slot: Slot) -> Option<MemberId> {
        self.slots.get(slot.index()).map(|placement| placement.owner)
    }

    /// The member that keeps the backup of `slot` while `owner` owns it.
    pub(crate) fn backup_owner(&self, slot: Slot, owner: MemberId) -> Option<MemberId> {
        let placement = self.slots.get(slot.index())?;
        if placement.owner == owner { placement.backup_owner } else { Some(placement.owner) }
    }
}

/// The members that each slot prefers, by their indices in the sorted list of members. It is retained, because a change
/// of the members leaves the order of all others as it is, and hashing and sorting take most of the time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Ranking {
    members: usize,
    // The entries of slot `s` start at `s * members`: the best member first, of two equal scores the earlier one.
    scores: Vec<u64>,
    order: Vec<MemberIndex>,
}

/// The index of a member in the sorted list of members.
type MemberIndex = u16;

impl Ranking {
    /// The ranking of the members `after`, where this one is of the members `before`.
    fn changed_to(&self, before: &[MemberId], after: &[MemberId], slots: usize) -> Self {
        let index = |index| MemberIndex::try_from(index).expect("there are at most 1,025 members");
        let index_after: Vec<Option<MemberIndex>> =
            before.iter().map(|member| after.binary_search(member).ok().map(index)).collect();
        let is_new = |(_, member): &(usize, &MemberId)| before.binary_search(member).is_err();
        let added: Vec<(MemberIndex, MemberId)> =
            after.iter().enumerate().filter(is_new).map(|(at, member)| (index(at), *member)).collect();
        let size = slots * after.len();
        let mut scores = Vec::with_capacity(size);
        let mut order = Vec::with_capacity(size);
        let mut new = Vec::with_capacity(added.len());
        for slot in 0..slots {
            new.clear();
            new.extend(added.iter().map(|(index, member)| (Reverse(score_of(slot, *member)), *index)));
            new.sort_unstable();
            let mut new = new.iter().copied().peekable();
            let mut put = |(Reverse(score), index)| {
                scores.push(score);
                order.push(index);
            };
            let kept = slot * self.members..(slot + 1) * self.members;
            for (score, index) in self.scores[kept.clone()].iter().zip(&self.order[kept]) {
                let Some(index) = index_after[usize::from(*index)] else { continue };
                let one = (Reverse(*score), index);
                while let Some(better) = new.next_if(|other| *other < one) {
                    put(better);
                }
                put(one);
            }
            new.for_each(put);
        }
        Self { members: after.len(), scores, order }
    }

    fn slots(&self) -> usize {
        self.order.len() / self.members
    }

    /// The member of this place in the order of `slot`, and its score.
    fn at(&self, slot: usize, place: usize) -> (usize, u64) {
        debug_assert!(place < self.members);
        let at = slot * self.members + place;
        (usize::from(self.order[at]), self.scores[at])
    }
}

/// Slots that have proposed to members, and the proposals that are accepted so far.
struct SlotMatching<'r> {
    ranking: &'r Ranking,
    /// The most slots of one member.
    slots_max: usize,
    /// The accepted proposals by member, the worst first.
    accepted: Vec<BinaryHeap<Reverse<(u64, usize)>>>,
    /// The place of the last proposal of each slot in its order.
    places: Vec<MemberIndex>,
}

impl Clone for SlotMatching<'_> {
    fn clone(&self) -> Self {
        Self { accepted: self.accepted.clone(), places: self.places.clone(), ..*self }
    }

    // Of the same ranking and maximum. The memory stays, because there is a copy for each member.
    fn clone_from(&mut self, other: &Self) {
        self.accepted.clone_from(&other.accepted);
        self.places.clone_from(&other.places);
    }
}

impl<'r> SlotMatching<'r> {
    /// The matching of all slots, where a member accepts as many as if there were so many members.
    fn for_all(ranking: &'r Ranking, members: usize) -> Self {
        let slots = ranking.slots();
        let mut matching = Self {
            ranking,
            slots_max: (slots * SHARE_MAX_PERCENT).div_ceil(members * 100),
            accepted: vec![BinaryHeap::new(); ranking.members],
            places: vec![0; slots],
        };
        (0..slots).for_each(|slot| matching.propose(slot, None));
        matching
    }

    /// Lets the slot propose to the member of its place, and each slot that is rejected to its next one, `without` left
    /// out.
    fn propose(&mut self, mut slot: usize, without: Option<usize>) {
        loop {
            let (member, score) = self.ranking.at(slot, self.places[slot].into());
            if without != Some(member) {
                let accepted = &mut self.accepted[member];
                accepted.push(Reverse((score, slot)));
                if accepted.len() <= self.slots_max {
                    return;
                }
                let Some(Reverse((_, rejected))) = accepted.pop() else { return };
                slot = rejected;
            }
            // There is room for all slots, so no slot is rejected by every member.
            self.places[slot] += 1;
        }
    }

    /// Gives the slots of this member to others.
    fn remove(&mut self, member: usize) {
        for Reverse((_, slot)) in std::mem::take(&mut self.accepted[member]) {
            self.propose(slot, Some(member));
        }
    }

    /// The member that has accepted `slot`.
    fn owner(&self, slot: usize) -> usize {
        self.ranking.at(slot, self.places[slot].into()).0
    }
}

/// The preference of a slot for members. It is part of the protocol: members that computed different scores would move
/// slots forever.
fn score_of(slot: usize, member: MemberId) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write_u64(slot as u64);
    hasher.write_u64(member.number());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use tollgate_counter::descriptor::{Entry, KeyText, Secret};
    use tollgate_store::SLOTS;

    use super::*;

    fn placement(members: Vec<MemberId>, slots: usize) -> Placement {
        Placement::default().changed_to(members, slots)
    }

    fn members(seed: u64, count: usize) -> Vec<MemberId> {
        let mut members: Vec<MemberId> = (0..count as u64)
            .map(|n| MemberId::from_number(score_of(n as usize, MemberId::from_number(seed))))
            .collect();
        members.sort_unstable();
        members
    }

    fn all() -> impl Iterator<Item = Slot> {
        (0..SLOTS).map(Slot::at)
    }

    fn shares(placement: &Placement) -> Vec<usize> {
        let share = |member: &MemberId| all().filter(|slot| placement.owner(*slot) == Some(*member)).count();
        placement.members().iter().map(share).collect()
    }

    fn moved(before: &Placement, after: &Placement) -> usize {
        all().filter(|slot| before.owner(*slot) != after.owner(*slot)).count()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn member_owns_at_most_7_percent_above_its_share(seed: u64, count in 3..=50usize) {
            let shares = shares(&placement(members(seed, count), SLOTS));
            let largest = *shares.iter().max().unwrap() as f64;
            prop_assert!(largest <= 1.07 * SLOTS as f64 / count as f64, "{largest} of {count}");
        }

        #[test]
        fn join_or_leave_moves_at_most_one_share_plus_2_percent(
            seed: u64,
            count in 3..=50usize,
            leaving: prop::sample::Index,
        ) {
            let with = members(seed, count);
            let mut without = with.clone();
            without.remove(leaving.index(count));
            let moved = moved(&placement(with, SLOTS), &placement(without, SLOTS)) as f64 / SLOTS as f64;
            prop_assert!(moved <= 1.0 / (count as f64 - 1.0) + 0.02, "{moved} at {count}");
        }

        #[test]
        fn backup_owner_is_next_owner_when_owner_departs(seed: u64, count in 2..=8usize) {
            let with = placement(members(seed, count), SLOTS);
            for leaving in with.members() {
                let rest: Vec<_> = with.members().iter().copied().filter(|member| member != leaving).collect();
                let without = placement(rest.clone(), SLOTS);
                prop_assert!(with.changed_to(rest, SLOTS) == without);
                prop_assert!(without.changed_to(with.members().to_vec(), SLOTS) == with);
                for slot in all().filter(|slot| with.owner(*slot) == Some(*leaving)) {
                    prop_assert_eq!(with.backup_owner(slot, *leaving), without.owner(slot));
                }
            }
        }
    }

    #[test]
    fn consecutive_keys_are_spread_over_members() {
        let placement = placement(members(7, 4), SLOTS);
        let secret = Secret::from_bytes([7; 16]);
        let mut shares = BTreeMap::<MemberId, usize>::new();
        for user in 0..200 {
            let value = format!("user{user}");
            let mut text = KeyText::new("api");
            text.entry(Entry::new("user", &value));
            let slot = Slot::for_key(text.key(&[0; 17], &secret), SLOTS);
            *shares.entry(placement.owner(slot).unwrap()).or_default() += 1;
        }
        assert_eq!(shares.len(), 4);
        assert!(shares.values().all(|share| (30..=70).contains(share)), "{shares:?}");
    }

    #[test]
    fn placement_is_the_same_in_every_version() {
        let placement = placement([3, 141, 5926, 53589].map(MemberId::from_number).to_vec(), SLOTS);
        let mut hasher = SipHasher13::new();
        for slot in all() {
            hasher.write_u64(placement.owner(slot).unwrap().number());
            hasher.write_u64(placement.backup_owner(slot, placement.owner(slot).unwrap()).unwrap().number());
        }
        assert_eq!(hasher.finish(), 1_237_884_436_370_591_103);
        let owners: Vec<u64> = (0..8).map(|slot| placement.owner(Slot::at(slot)).unwrap().number()).collect();
        assert_eq!(owners, [141, 141, 3, 5926, 53589, 5926, 141, 5926]);
    }

    #[test]
    fn single_member_owns_all_slots_and_no_member_none() {
        let alone = placement(vec![MemberId::from_number(1)], SLOTS);
        assert!(all().all(|slot| alone.owner(slot) == Some(MemberId::from_number(1))));
        assert_eq!(alone.backup_owner(Slot::at(0), MemberId::from_number(1)), None);
        assert_eq!(placement(Vec::new(), SLOTS).owner(Slot::at(0)), None);
    }
}
