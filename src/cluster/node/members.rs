//! Who is there, who is silent, who is dead; and when this replica may leave.

use std::time::Duration;

use crate::{
    cluster::{
        MemberId,
        message::{Message, Record, State},
        node::{Action, Event, Node},
        slots::Wanted,
    },
    time::Timestamp,
};

/// How many of those who are gone are remembered.
const GONE_MAX: usize = 10_000;
/// For how long those who were only silent are looked for.
const FORGOTTEN_DIALLED: Duration = Duration::from_secs(24 * 60 * 60);

/// A member that is not known to be dead.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) record: Record,
    /// Whether there is a session with it.
    pub(super) linked: bool,
    /// Whether it has told what it holds, by the same hashing as ours.
    pub(super) mapped: bool,
    pub(super) heard_at: Timestamp,
    /// Asks to it that had no answer in time, since the last that had.
    pub(super) late_in_a_row: u32,
    /// No asks are sent to it before.
    pub(super) spared_until: Timestamp,
}

impl Peer {
    /// One that was just heard of.
    fn new(record: Record, now: Timestamp) -> Self {
        Self {
            record,
            linked: false,
            mapped: false,
            heard_at: now,
            late_in_a_row: 0,
            spared_until: Timestamp::EPOCH,
        }
    }

    /// Whether it would take slots, if it is heard.
    fn serves(&self) -> bool {
        self.mapped && self.record.state == State::Serving
    }
}

/// A member that is no longer there.
#[derive(Clone, Debug)]
pub(super) struct Gone {
    pub(super) record: Record,
    pub(super) at: Timestamp,
    pub(super) how: How,
    dialled_at: Timestamp,
}

/// How it is known that somebody is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// Its address refused, or it said goodbye: it never comes back.
    Proven,
    /// It was silent for too long.
    Forgotten,
}

impl Node {
    /// A session with `peer` has begun.
    pub(crate) fn linked(&mut self, peer: MemberId, address: &str, now: Timestamp) {
        if peer == self.me || self.is_proven_dead(peer) {
            return;
        }
        if self.peers.get(&peer).is_some_and(|peer| peer.linked) {
            self.lost(peer, false, now);
        }
        self.gone.remove(&peer);
        let record =
            Record { id: peer, address: address.to_owned(), state: State::Joining, rules: 0, changes: 0 };
        let known = self.peers.entry(peer).or_insert_with(|| Peer::new(record, now));
        (known.linked, known.mapped, known.heard_at) = (true, false, now);
        self.outbox.remove(&peer);
        self.greet(peer);
    }

    /// The session with `peer` is over, and nothing of it is heard any more; `dead` where that is proven.
    pub(crate) fn lost(&mut self, peer: MemberId, dead: bool, now: Timestamp) {
        let how = if dead { How::Proven } else { How::Forgotten };
        self.bury(peer, how, now);
    }

    /// Something was heard of `peer`.
    pub(crate) fn heard(&mut self, peer: MemberId, now: Timestamp) {
        if let Some(peer) = self.peers.get_mut(&peer) {
            peer.heard_at = peer.heard_at.max(now);
        }
    }

    /// All seeds were tried, and `alone` says whether nobody answered but this process.
    pub(crate) fn seeds_tried(&mut self, alone: bool) {
        self.alone = alone;
    }

    /// An operator knows that a member is dead. Says whether it was known here.
    pub(crate) fn declare_dead(&mut self, member: MemberId, now: Timestamp) -> bool {
        let known = self.peers.contains_key(&member) || self.gone.contains_key(&member);
        if known {
            self.gone.remove(&member);
            self.bury(member, How::Proven, now);
        }
        known
    }

    /// The hash of the rules in force.
    pub(crate) fn rules_changed(&mut self, rules: u64) {
        if self.record.rules != rules {
            self.record.rules = rules;
            self.tell_record();
        }
    }

    /// No longer wanted: hands everything on.
    pub(crate) fn drain(&mut self, now: Timestamp) {
        if self.draining_since.is_none() {
            self.draining_since = Some(now);
            // Whoever has not joined yet knows no holder to ask, and goes on answering that.
            if self.record.state == State::Serving {
                self.record.state = State::Draining;
                self.tell_record();
            }
            self.give_back(now);
            self.choose(now);
        }
    }

    /// Whether `member` is not there: it is gone, for sure or by its silence, or was before we came.
    pub(super) fn is_gone(&self, member: MemberId) -> bool {
        member != self.me && !self.peers.contains_key(&member)
    }

    pub(super) fn is_proven_dead(&self, member: MemberId) -> bool {
        self.gone.get(&member).is_some_and(|gone| gone.how == How::Proven)
    }

    /// The last of those who are proven dead.
    pub(super) fn proven_dead(&self) -> Vec<MemberId> {
        // Only the last few matter to anybody who asks.
        let dead =
            self.gone.iter().filter(|(_, gone)| gone.how == How::Proven).map(|(id, gone)| (gone.at, *id));
        let mut dead: Vec<_> = dead.collect();
        dead.sort_unstable();
        dead.into_iter().rev().take(100).map(|(_, id)| id).collect()
    }

    /// Whether messages reach `peer`, as far as is known.
    pub(super) fn hears(&self, peer: MemberId, now: Timestamp) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.linked && self.is_heard(peer, now))
    }

    pub(super) fn is_heard(&self, peer: &Peer, now: Timestamp) -> bool {
        now.since(peer.heard_at) <= self.tuning.silence
    }

    pub(super) fn hear(&mut self, record: Record, now: Timestamp) {
        let id = record.id;
        if id == self.me || self.gone.contains_key(&id) {
            return;
        }
        match self.peers.get_mut(&id) {
            Some(peer) => {
                if peer.record.changes < record.changes {
                    peer.record = record;
                    self.choose(now);
                }
            }
            None => {
                self.actions.push(Action::Dial(record.address.clone()));
                self.peers.insert(id, Peer::new(record, now));
            }
        }
    }

    /// Whether `peer` has told that it counts as we do, and what it holds. What it says of slots before is of another
    /// cluster, and void.
    pub(super) fn is_mapped(&self, peer: MemberId) -> bool {
        self.peers.get(&peer).is_some_and(|peer| peer.mapped)
    }

    pub(super) fn tell_record(&mut self) {
        self.record.changes += 1;
        let record = self.record.clone();
        self.tell_all(&Message::Member(record));
    }

    /// Works out anew who should hold what. Whoever is silent could neither take nor claim anything, nor keep a backup.
    pub(super) fn choose(&mut self, now: Timestamp) {
        let mut members: Vec<MemberId> = self
            .peers
            .values()
            .filter(|peer| peer.serves() && self.is_heard(peer, now))
            .map(|peer| peer.record.id)
            .collect();
        members.extend((self.record.state == State::Serving).then_some(self.me));
        members.sort_unstable();
        if members != self.wanted.members() {
            self.wanted = Wanted::of(members, self.slots.len());
            self.restless = true;
        }
    }

    /// Silence, isolation, and oblivion.
    pub(super) fn watch_peers(&mut self, now: Timestamp) {
        let forget_after = self.tuning.forget_after;
        let too_silent = |peer: &&Peer| forget_after < now.since(peer.heard_at);
        let silent: Vec<MemberId> =
            self.peers.values().filter(too_silent).map(|peer| peer.record.id).collect();
        for peer in silent {
            self.bury(peer, How::Forgotten, now);
        }
        self.dial_the_forgotten(now);
        self.judge_isolation(now);
        self.choose(now);
    }

    /// Whoever was forgotten may come back, and be found where it was.
    fn dial_the_forgotten(&mut self, now: Timestamp) {
        let every = self.tuning.forget_after / 6;
        for gone in self.gone.values_mut() {
            if gone.how == How::Forgotten
                && every <= now.since(gone.dialled_at)
                && now.since(gone.at) < FORGOTTEN_DIALLED
            {
                gone.dialled_at = now;
                self.actions.push(Action::Dial(gone.record.address.clone()));
            }
        }
    }

    /// Whoever hears no more than half of the last healthy view does not trust what it holds. Of two halves, the one
    /// with the smallest member goes on.
    fn judge_isolation(&mut self, now: Timestamp) {
        if self.record.state != State::Joining {
            self.healthy.insert(self.me);
        }
        let here =
            |peer: &&Peer| peer.mapped && peer.record.state != State::Joining && self.is_heard(peer, now);
        let heard: Vec<MemberId> = self.peers.values().filter(here).map(|peer| peer.record.id).collect();
        let counts = |id: &&MemberId| **id == self.me || heard.contains(id);
        let with = self.healthy.iter().filter(counts).count();
        let first = self.healthy.first().is_none_or(|first| counts(&first));
        let all = self.healthy.len();
        let isolated = 2 * with < all || (2 * with == all && !first);
        if !isolated {
            self.healthy.extend(heard);
            // Those who were forgotten are out of the view, as long as most are in it.
            let gone = &self.gone;
            self.healthy.retain(|id| !gone.contains_key(id));
        }
        if self.isolated != isolated {
            self.isolated = isolated;
            self.memory.set_suspended(isolated);
            let event = if isolated { Event::Isolated } else { Event::Reunited };
            self.actions.push(Action::Tell(event));
            self.figures.isolations += u64::from(isolated);
        }
    }

    /// Nothing is heard of `member` from now on.
    pub(super) fn bury(&mut self, member: MemberId, how: How, now: Timestamp) {
        if member == self.me || self.is_proven_dead(member) {
            return;
        }
        let record = match self.peers.remove(&member) {
            Some(peer) => peer.record,
            None if how == How::Forgotten => return,
            None => {
                Record { id: member, address: String::new(), state: State::Joining, rules: 0, changes: 0 }
            }
        };
        self.outbox.remove(&member);
        self.gone.insert(member, Gone { record, at: now, how, dialled_at: now });
        if GONE_MAX < self.gone.len() {
            let oldest = self.gone.iter().min_by_key(|(_, gone)| gone.at).map(|(id, _)| *id);
            oldest.and_then(|oldest| self.gone.remove(&oldest));
        }
        if how == How::Proven {
            self.healthy.remove(&member);
        }
        self.restless = true;
        self.actions.push(Action::Forget(member));
        self.figures.lost_members += 1;
        self.recover_transfers_to(member, now);
        self.stop_waiting_for(member, now);
        self.lessor_gone(member, now);
        self.lessee_gone(member, how, now);
        self.ask_elsewhere(member, now);
        self.choose(now);
    }

    /// Leaves when everything is handed on, and nobody depends on what is kept here.
    pub(super) fn leave_when_done(&mut self, now: Timestamp) {
        if self.is_done(now) {
            self.actions.push(Action::Leave);
        }
    }

    /// Whether everything is handed on, and nobody depends on what is kept here or waits for an answer.
    pub(crate) fn is_done(&self, now: Timestamp) -> bool {
        let Some(since) = self.draining_since else { return false };
        let receivers = self.peers.values().any(Peer::serves);
        let orphan = |slot| {
            let state = self.slot(slot);
            let lives =
                state.holder.is_some_and(|holder| !self.is_gone(holder.member) && holder.member != self.me);
            state.copy.is_some() && !lives
        };
        let holds = self.all_slots().any(|slot| self.slot(slot).held.is_some());
        let busy = self.asks.are_owed() || !self.pending.is_empty();
        let kept = receivers && (holds || self.all_slots().any(orphan));
        !busy && !kept && self.tuning.silence < now.since(since)
    }
}
