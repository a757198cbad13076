//! Placement: the intended owner of each slot, a pure function of the members that serve.
//!
//! Rendezvous hashing ranks the members for each slot (Thaler and Ravishankar, 1998). By itself it leaves the largest
//! share well above the mean, so each member accepts at most [`SHARE_MAX_PERCENT`] of the mean: slots propose to
//! members in the order of their ranking, and a member with too many slots rejects those that rank it lowest. This is
//! the stable matching of Gale and Shapley (1962): every replica computes the same result, and adding or removing a
//! member changes little.

use std::{cmp::Reverse, collections::BinaryHeap, hash::Hasher, sync::Arc};

use siphasher::sip::SipHasher13;
use tollgate_limiter::store::Slot;

use crate::cluster::MemberId;

/// The most slots of one member, in percent of the mean.
const SHARE_MAX_PERCENT: usize = 105;

/// The intended owner of each slot, and its backup owner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Placement {
    members: Vec<MemberId>,
    // By member. A change of the members keeps those of all others, because hashing takes most of the time.
    scores: Vec<Scores>,
    // One entry per slot; empty if there are no members.
    slots: Vec<SlotPlacement>,
}

/// The scores of one member, by slot.
type Scores = Arc<[u64]>;

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
        let scores: Vec<Scores> = members
            .iter()
            .map(|member| match self.members.binary_search(member) {
                Ok(index) => self.scores[index].clone(),
                Err(_) => (0..slots).map(|slot| score_of(slot, *member)).collect(),
            })
            .collect();
        let ranking = Ranking::of(&scores, slots);
        let mut matching = Matching::new(&ranking, members.len());
        matching.assign((0..slots).collect(), None);
        let owners = matching.owners();
        // The backup owner of a slot is its owner in a matching without its owner. A member less never gives a slot a
        // better owner, so each such matching continues from the one of all members with the same maximum.
        let mut backup_owners = vec![None; slots];
        if members.len() > 1 {
            matching = Matching::new(&ranking, members.len() - 1);
            matching.assign((0..slots).collect(), None);
            for member in 0..members.len() {
                let without = matching.without(member);
                for (slot, _) in owners.iter().enumerate().filter(|(_, owner)| **owner == member) {
                    backup_owners[slot] = Some(members[without.owner(slot)]);
                }
            }
        }
        let placement =
            |(owner, backup_owner): (&usize, _)| SlotPlacement { owner: members[*owner], backup_owner };
        let slots = owners.iter().zip(backup_owners).map(placement).collect();
        Self { members, scores, slots }
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

/// The preferences of all slots for all members, which are indices into the list of members.
struct Ranking {
    members: usize,
    // The scores of slot `s` start at `s * members`, by member.
    scores: Vec<u64>,
}

/// The rank of a member for a slot: the larger one is preferred. Of two equal scores, the earlier member wins.
type Rank = (u64, Reverse<usize>);

impl Ranking {
    fn of(members: &[Scores], slots: usize) -> Self {
        let mut scores = Vec::with_capacity(members.len() * slots);
        for slot in 0..slots {
            scores.extend(members.iter().map(|scores| scores[slot]));
        }
        Self { members: members.len(), scores }
    }

    fn slots(&self) -> usize {
        self.scores.len() / self.members
    }

    /// The best member of `slot` below this rank, without `without`. Few slots go far down, so nothing is sorted.
    fn next(&self, slot: usize, below: Option<Rank>, without: Option<usize>) -> Option<Rank> {
        let scores = self.scores[slot * self.members..][..self.members].iter().enumerate();
        let ranks = scores.map(|(member, score)| (*score, Reverse(member)));
        ranks.filter(|rank| below.is_none_or(|below| *rank < below) && without != Some(rank.1.0)).max()
    }
}

/// Slots that have proposed to members, and the proposals that are accepted so far.
#[derive(Clone)]
struct Matching<'r> {
    ranking: &'r Ranking,
    /// The most slots of one member.
    slots_max: usize,
    /// By member, the worst proposal first.
    accepted: Vec<BinaryHeap<Reverse<(u64, usize)>>>,
    /// The last proposal of each slot.
    proposed: Vec<Option<Rank>>,
}

impl<'r> Matching<'r> {
    /// No slot has proposed; the slots are to be divided among so many members.
    fn new(ranking: &'r Ranking, members: usize) -> Self {
        let slots = ranking.slots();
        Self {
            ranking,
            slots_max: (slots * SHARE_MAX_PERCENT).div_ceil(members * 100),
            accepted: vec![BinaryHeap::new(); ranking.members],
            proposed: vec![None; slots],
        }
    }

    /// Lets these slots propose, among all members but `without`, until each has an owner.
    fn assign(&mut self, mut unassigned: Vec<usize>, without: Option<usize>) {
        while let Some(slot) = unassigned.pop() {
            let next = self.ranking.next(slot, self.proposed[slot], without);
            let rank @ (score, Reverse(member)) =
                next.expect("there is room for all slots, so no slot is rejected by every member");
            self.proposed[slot] = Some(rank);
            let accepted = &mut self.accepted[member];
            accepted.push(Reverse((score, slot)));
            if accepted.len() > self.slots_max {
                unassigned.extend(accepted.pop().map(|Reverse((_, slot))| slot));
            }
        }
    }

    /// The matching without this member.
    fn without(&self, member: usize) -> Self {
        let mut without = self.clone();
        let unassigned = std::mem::take(&mut without.accepted[member]);
        without.assign(unassigned.into_iter().map(|Reverse((_, slot))| slot).collect(), Some(member));
        without
    }

    /// The member that has accepted `slot`.
    fn owner(&self, slot: usize) -> usize {
        let (_, Reverse(member)) = self.proposed[slot].expect("every slot has proposed");
        member
    }

    /// The owner of each slot.
    fn owners(&self) -> Vec<usize> {
        (0..self.proposed.len()).map(|slot| self.owner(slot)).collect()
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
    use tollgate_limiter::{
        descriptor::{Entry, KeyText, Secret},
        store::SLOTS,
    };

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
            text.entry(Entry { key: "user", value: &value });
            let slot = Slot::of(text.key(&[0; 17], &secret), SLOTS);
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
