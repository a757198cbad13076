//! How replicas come together: what they tell each other first, whose counting goes on, and when one may serve.

use crate::{
    cluster::{
        MemberId,
        message::{Hashing, Hello, Message, State},
        node::{Action, Event, Node, members::Peer},
    },
    descriptor::Secret,
    time::{SECOND, Timestamp},
};

/// The wall counts changes of hands in steps of so many nanoseconds: no slot changes hands as often.
const EPOCH: u64 = SECOND / 1_000;

impl Node {
    pub(super) fn greet(&mut self, peer: MemberId) {
        let held = |slot| {
            let held = self.slot(slot).held.as_ref()?;
            Some((slot, held.epoch, held.origin.version))
        };
        let hello = Hello {
            record: self.record.clone(),
            hashing: self.hashing.clone(),
            known: self
                .peers
                .values()
                .map(|peer| peer.record.clone())
                .filter(|record| 0 < record.changes)
                .collect(),
            held: self.all_slots().filter_map(held).collect(),
            holders: self
                .all_slots()
                .filter_map(|slot| self.slot(slot).holder.map(|holder| (slot, holder)))
                .collect(),
        };
        self.send(peer, Message::Hello(Box::new(hello)));
    }

    fn greet_all(&mut self) {
        for peer in self.peers.keys().copied().collect::<Vec<_>>() {
            self.greet(peer);
        }
    }

    pub(super) fn greeted(&mut self, from: MemberId, hello: Hello, now: Timestamp) {
        let Hello { record, hashing, known, held, holders } = hello;
        // What a joining replica names may be of a former process, and in use nowhere.
        let is_in_use = record.state != State::Joining;
        self.hear(record, now);
        for record in known {
            self.hear(record, now);
        }
        let is_of_ours = match (hashing, &self.hashing) {
            // It will tell again when it has joined.
            (None, Some(_)) => false,
            (None, None) => true,
            (Some(theirs), Some(ours)) if theirs.founder == ours.founder => {
                self.is_founded |= is_in_use;
                true
            }
            // It will begin anew, and tell again.
            (Some(_), Some(_)) if self.is_founded && !is_in_use => false,
            (Some(theirs), Some(ours)) if ours.founder < theirs.founder && self.is_founded == is_in_use => {
                false
            }
            (Some(theirs), _) => {
                self.is_founded = is_in_use;
                self.begin_anew(theirs);
                true
            }
        };
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.mapped = is_of_ours;
        }
        if is_of_ours {
            for (slot, holder) in holders {
                self.learn(slot, holder, now);
            }
            for (slot, epoch, origin) in held {
                self.told_holder(from, slot, epoch, origin, now);
            }
        }
        self.choose(now);
    }

    /// Takes over the hashing of a cluster that is met. What was counted by another is void.
    fn begin_anew(&mut self, hashing: Hashing) {
        let former = self.hashing.replace(hashing.clone());
        self.actions.push(Action::Hash(hashing.secret.clone()));
        let same = former.is_some_and(|former| former.secret.to_bytes() == hashing.secret.to_bytes());
        if !same {
            self.forget_counters();
            // Those who come over tell again.
            self.peers.values_mut().for_each(|peer| peer.mapped = false);
            if self.record.state == State::Serving {
                self.figures.begun_anew += 1;
                self.actions.push(Action::Tell(Event::BegunAnew));
                self.record.state = State::Joining;
                self.tell_record();
            }
        }
        self.greet_all();
    }

    fn forget_counters(&mut self) {
        for slot in self.all_slots() {
            if self.slot(slot).held.is_some() {
                drop(self.memory.release(slot));
            }
            *self.slot_mut(slot) = Default::default();
        }
        self.pending.clear();
        self.lender = Default::default();
        self.lessee = Default::default();
        self.shares.clear();
        self.fail_asks();
    }

    /// Begins to serve when the map is known, or when there is nobody to know it.
    pub(super) fn start_serving(&mut self, now: Timestamp) {
        if self.record.state != State::Joining || self.draining_since.is_some() {
            return;
        }
        let heard = self.peers.values().filter(|peer| self.is_heard(peer, now));
        let all_mapped = heard.clone().all(|peer| peer.mapped);
        let waited = self.tuning.patience <= now.since(self.born);
        let nobody = heard.clone().next().is_none();
        let serves = |peer: &Peer| peer.mapped && peer.record.state != State::Joining;
        // Whoever was the first claims everything, and two who claim would count it twice.
        let all_held = self.slots.iter().all(|slot| slot.holder.is_some());
        let may = if heard.clone().any(serves) {
            let long = 2 * self.tuning.patience <= now.since(self.born);
            all_mapped && self.hashing.is_some() && (all_held || long)
        } else if nobody {
            self.alone && waited
        } else {
            // All begin together: the smallest is the first.
            waited && heard.clone().all(|peer| self.me < peer.record.id)
        };
        if !may {
            return;
        }
        if self.hashing.is_none() {
            let hashing = Hashing { founder: self.me, secret: Secret::random() };
            self.actions.push(Action::Hash(hashing.secret.clone()));
            self.hashing = Some(hashing);
        } else if self.peers.values().all(|peer| !peer.mapped) {
            let secret = self.hashing.as_ref().map(|hashing| hashing.secret.clone());
            self.actions.extend(secret.map(Action::Hash));
        }
        self.epochs_from = self.epochs_from.max(self.wall.as_nanos() / EPOCH);
        self.is_founded = true;
        self.record.state = State::Serving;
        self.actions.push(Action::Tell(Event::Joined));
        self.tell_record();
        self.greet_all();
        self.choose(now);
    }
}
