//! Placement: the intended owner of each slot, a pure function of the members that serve.
//!
//! Rendezvous hashing ranks the members for each slot (Thaler and Ravishankar, 1998). By itself it leaves the largest
//! share well above the mean, so each member accepts at most [`SHARE_MAX_PERCENT`] of the mean: slots propose to
//! members in the order of their ranking, and a member with too many slots rejects those that rank it lowest. This is
//! the stable matching of Gale and Shapley (1962): every replica computes the same result, and adding or removing a
//! member changes little.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    hash::Hasher,
};

use siphasher::sip::SipHasher13;
use tollgate_limiter::store::Slot;

use crate::cluster::MemberId;

/// The most slots of one member, in percent of the mean.
const SHARE_MAX_PERCENT: usize = 105;

/// The intended owner of each slot, and its backup owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Placement {
    members: Vec<MemberId>,
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
    /// The placement of `slots` slots on `members`, which are sorted.
    pub(crate) fn of(members: Vec<MemberId>, slots: usize) -> Self {
        debug_assert!(members.is_sorted());
        if members.is_empty() {
            return Self::default();
        }
        let ranking = Ranking::of(&members, slots);
        let owners = ranking.matching(None);
        // The backup owner of a slot is its owner in a matching without its owner.
        let mut without: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        if members.len() > 1 {
            without.extend((0..members.len()).map(|member| (member, ranking.matching(Some(member)))));
        }
        let placement = |(slot, owner): (usize, &usize)| SlotPlacement {
            owner: members[*owner],
            backup_owner: without.get(owner).map(|owners| members[owners[slot]]),
        };
        let slots = owners.iter().enumerate().map(placement).collect();
        Self { members, slots }
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

/// The members in the order of preference of each slot, as indices into the list of members.
struct Ranking {
    members: usize,
    // The scores of slot `s` start at `s * members`, by member.
    scores: Vec<u64>,
    // Indices of members in the same layout, the best member first.
    order: Vec<usize>,
}

impl Ranking {
    fn of(members: &[MemberId], slots: usize) -> Self {
        let scores: Vec<u64> =
            (0..slots).flat_map(|slot| members.iter().map(move |member| score(slot, *member))).collect();
        let order = scores
            .chunks_exact(members.len())
            .flat_map(|scores| {
                let mut order: Vec<usize> = (0..members.len()).collect();
                // Of two equal scores, the earlier member wins.
                order.sort_by_key(|member| Reverse(scores[*member]));
                order
            })
            .collect();
        Self { members: members.len(), scores, order }
    }

    /// The owner of each slot, among all members but `without`.
    fn matching(&self, without: Option<usize>) -> Vec<usize> {
        let slots = self.scores.len() / self.members;
        let members = self.members - usize::from(without.is_some());
        let slots_max = (slots * SHARE_MAX_PERCENT).div_ceil(members * 100);
        let mut accepted: Vec<BinaryHeap<Reverse<(u64, usize)>>> = vec![BinaryHeap::new(); self.members];
        // The number of proposals of each slot.
        let mut proposals = vec![0; slots];
        let mut unassigned: Vec<usize> = (0..slots).collect();
        // There is room for all slots, so no slot is rejected by every member.
        while let Some(slot) = unassigned.pop() {
            let member = self.order[slot * self.members + proposals[slot]];
            proposals[slot] += 1;
            if without == Some(member) {
                unassigned.push(slot);
                continue;
            }
            accepted[member].push(Reverse((self.scores[slot * self.members + member], slot)));
            if accepted[member].len() > slots_max {
                let rejected = accepted[member].pop();
                unassigned.extend(rejected.map(|Reverse((_, slot))| slot));
            }
        }
        let mut owners = vec![0; slots];
        for (member, accepted) in accepted.iter().enumerate() {
            for Reverse((_, slot)) in accepted {
                owners[*slot] = member;
            }
        }
        owners
    }
}

/// The preference of a slot for a member. It is part of the protocol: members that computed different scores would move
/// slots forever.
fn score(slot: usize, member: MemberId) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write_u64(slot as u64);
    hasher.write_u64(member.number());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tollgate_limiter::{
        descriptor::{Entry, KeyText, Secret},
        store::SLOTS,
    };

    use super::*;

    fn members(seed: u64, count: usize) -> Vec<MemberId> {
        let mut members: Vec<MemberId> = (0..count as u64)
            .map(|n| MemberId::from_number(score(n as usize, MemberId::from_number(seed))))
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
            let shares = shares(&Placement::of(members(seed, count), SLOTS));
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
            let moved = moved(&Placement::of(with, SLOTS), &Placement::of(without, SLOTS)) as f64 / SLOTS as f64;
            prop_assert!(moved <= 1.0 / (count as f64 - 1.0) + 0.02, "{moved} at {count}");
        }

        #[test]
        fn backup_owner_is_next_owner_when_owner_departs(seed: u64, count in 2..=8usize) {
            let with = Placement::of(members(seed, count), SLOTS);
            for leaving in with.members() {
                let rest = with.members().iter().copied().filter(|member| member != leaving).collect();
                let without = Placement::of(rest, SLOTS);
                for slot in all().filter(|slot| with.owner(*slot) == Some(*leaving)) {
                    prop_assert_eq!(with.backup_owner(slot, *leaving), without.owner(slot));
                }
            }
        }
    }

    #[test]
    fn consecutive_keys_are_spread_over_members() {
        let placement = Placement::of(members(7, 4), SLOTS);
        let secret = Secret::from_bytes([7; 16]);
        let mut shares = BTreeMap::<MemberId, usize>::new();
        for user in 0..200 {
            let value = format!("user{user}");
            let mut text = KeyText::new("api");
            text.entry(Entry { key: "user", value: &value });
            let slot = Slot::of(text.key(&[0; 17], &secret), SLOTS);
            *shares.entry(placement.owner(slot).unwrap()).or_default() += 1;
        }
        assert_eq!(shares.len(), 4);
        assert!(shares.values().all(|share| (30..=70).contains(share)), "{shares:?}");
    }

    #[test]
    fn placement_is_the_same_in_every_version() {
        let placement = Placement::of([3, 141, 5926, 53589].map(MemberId::from_number).to_vec(), SLOTS);
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
        let alone = Placement::of(vec![MemberId::from_number(1)], SLOTS);
        assert!(all().all(|slot| alone.owner(slot) == Some(MemberId::from_number(1))));
        assert_eq!(alone.backup_owner(Slot::at(0), MemberId::from_number(1)), None);
        assert_eq!(Placement::of(Vec::new(), SLOTS).owner(Slot::at(0)), None);
    }
}
