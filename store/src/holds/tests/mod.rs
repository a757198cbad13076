//! Tests of holds: what they leave in a counter of any algorithm, and what is remembered of them.

use std::{collections::BTreeMap, time::Duration};

use proptest::prelude::*;

use super::*;
use tollgate_counter::{
    algorithm::{
        Admission, Excess, LogCounter,
        laws::{any_limit, early, every_limit},
    },
    packed_counter::put,
    time::SECOND,
};

mod held_counter;

const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);
const HOUR: u64 = 3_600 * SECOND;

#[derive(Clone, Copy, Debug)]
enum Event {
    Reserve { hits: u64, ttl: Duration, on_expiry: OnExpiry },
    // Settles one of the open holds at this part of its hits, in hundredths.
    Settle { which: usize, percent: u64 },
    Charge(u64),
    Refund(u64),
}

/// What happens to the counter in the end, with the final numbers of hits.
#[derive(Clone, Copy, Debug)]
enum Final {
    Charge { hits: u64 },
    Hold { number: u64, hits: u64 },
    Refund { hits: u64 },
}

/// A counter with holds.
struct Subject {
    limit: Limit,
    counter: Counter,
    holds: Holds,
    now: Timestamp,
    log: Vec<(Timestamp, Final)>,
    // The hits that each hold was settled at.
    kept: BTreeMap<u64, u64>,
    // Hits, expiry and what happens then, of the open holds.
    open: Vec<(u64, u64, Timestamp, OnExpiry)>,
}

fn id(number: u64) -> HoldId {
    HoldId::new(&number.to_be_bytes()).unwrap()
}

fn terms(number: u64, ttl: Duration, on_expiry: OnExpiry) -> HoldTerms {
    HoldTerms { id: id(number), attempt: number, ttl, on_expiry, parts: Vec::new() }
}

fn left(limit: &Limit, counter: &Counter, now: Timestamp) -> u64 {
    limit.decide(&mut counter.clone(), now, Operation::Peek).remaining
}

impl Subject {
    fn new(limit: &Limit) -> Self {
        Self {
            limit: limit.clone(),
            counter: limit.fresh(),
            holds: Holds::new(limit),
            now: NOW,
            log: Vec::new(),
            kept: BTreeMap::new(),
            open: Vec::new(),
        }
    }

    fn advance(&mut self, pause: u64) {
        self.now = self.now.plus(pause);
        self.holds.expire(&self.limit, &mut self.counter, self.now);
        let now = self.now;
        for (number, hits, _, on_expiry) in self.open.extract_if(.., |(_, _, at, _)| *at <= now) {
            let kept = match on_expiry {
                OnExpiry::Release => 0,
                OnExpiry::Charge => hits,
            };
            self.kept.insert(number, kept);
        }
    }

    /// Charges or refunds as another call would, if that passes. Returns whether it did.
    fn decide(&mut self, operation: Operation) -> bool {
        self.holds.observe(&self.limit, &self.counter, self.now);
        let mut after = self.counter.clone();
        let fits = match operation {
            Operation::Charge(hits) => hits <= left(&self.limit, &self.counter, self.now),
            Operation::Peek | Operation::Refund(_) => true,
        };
        let passes = fits && self.limit.decide(&mut after, self.now, operation).verdict.passes();
        if passes {
            self.counter = after;
        }
        self.holds.observe(&self.limit, &self.counter, self.now);
        passes
    }

    fn reserve(&mut self, hits: u64, ttl: Duration, on_expiry: OnExpiry) -> bool {
        if self.uncut() < hits {
            return false;
        }
        self.holds.observe(&self.limit, &self.counter, self.now);
        let mut after = self.counter.clone();
        let decision = self.limit.decide(&mut after, self.now, Operation::Charge(hits));
        if !decision.verdict.passes() {
            return false;
        }
        let held = self.limit.held(&self.counter, &after, hits, self.now);
        self.counter = after;
        self.holds.observe(&self.limit, &self.counter, self.now);
        let number = self.log.len() as u64;
        self.holds.add(id(number), &terms(number, ttl, on_expiry), hits, held, &decision, self.now);
        self.log.push((self.now, Final::Hold { number, hits }));
        self.open.push((number, hits, self.now.after(ttl), on_expiry));
        true
    }

    /// The hits that can be charged without a cut. A debt that its bound cuts stays cut, whatever is taken back later.
    fn uncut(&self) -> u64 {
        match self.limit.excess() {
            Excess::Overdraft(debt) => left(&self.limit, &self.counter, self.now).saturating_add(debt),
            Excess::Refuse | Excess::Count => u64::MAX,
        }
    }

    fn settle(&mut self, index: usize, percent: u64) {
        let (number, hits, ..) = self.open.remove(index);
        let actual = u64::try_from(u128::from(hits) * u128::from(percent) / 100).unwrap_or(u64::MAX);
        let actual = actual.min(hits.saturating_add(self.uncut()));
        let settled = self.holds.settle(&self.limit, &mut self.counter, &id(number), actual, self.now);
        self.holds.observe(&self.limit, &self.counter, self.now);
        assert_eq!((settled.outcome, settled.reserved), (SettleOutcome::Open, hits));
        self.kept.insert(number, actual.min(hits));
        let more = actual.saturating_sub(hits) - settled.uncharged;
        if more > 0 {
            self.log.push((self.now, Final::Charge { hits: more }));
        }
    }

    fn apply(&mut self, pause: u64, event: Event) {
        self.advance(pause);
        match event {
            Event::Reserve { hits, ttl, on_expiry } => {
                self.reserve(hits, ttl, on_expiry);
            }
            Event::Settle { which, percent } if !self.open.is_empty() => {
                self.settle(which % self.open.len(), percent);
            }
            Event::Settle { .. } => {}
            Event::Charge(hits) => {
                if self.decide(Operation::Charge(hits)) {
                    self.log.push((self.now, Final::Charge { hits }));
                }
            }
            Event::Refund(hits) => {
                self.decide(Operation::Refund(hits));
                self.log.push((self.now, Final::Refund { hits }));
            }
        }
    }

    /// The counter of the same history, with what was kept of each hold charged when it was reserved.
    fn without_holds(&self) -> Counter {
        let mut counter = self.limit.fresh();
        for (at, last) in &self.log {
            let operation = match *last {
                Final::Charge { hits } => Operation::Charge(hits),
                Final::Hold { number, hits } => Operation::Charge(hits.min(self.kept[&number])),
                Final::Refund { hits } => Operation::Refund(hits),
            };
            match (&self.limit, operation) {
                // Its steps may end later here than with holds: what passed there counts here, too.
                (Limit::SteppedBucket(_), Operation::Charge(hits)) => {
                    self.limit.charge_at(&mut counter, hits, *at, *at);
                }
                _ => {
                    self.limit.decide(&mut counter, *at, operation);
                }
            }
        }
        counter
    }
}

fn any_hits() -> impl Strategy<Value = u64> {
    prop_oneof![4 => 0..6_u64, 2 => 1..200_u64, 1 => any::<u64>()]
}

fn any_ttl() -> impl Strategy<Value = Duration> {
    prop_oneof![1..1_000_u64, 1_000..100_000_u64, 1..86_400_000_u64].prop_map(Duration::from_millis)
}

fn any_event() -> impl Strategy<Value = Event> {
    let on_expiry = prop_oneof![Just(OnExpiry::Release), Just(OnExpiry::Charge)];
    prop_oneof![
        3 => (any_hits(), any_ttl(), on_expiry)
            .prop_map(|(hits, ttl, on_expiry)| Event::Reserve { hits, ttl, on_expiry }),
        3 => (any::<usize>(), prop_oneof![Just(0), Just(100), 0..200_u64])
            .prop_map(|(which, percent)| Event::Settle { which, percent }),
        4 => any_hits().prop_map(Event::Charge),
    ]
}

fn any_pause() -> impl Strategy<Value = u64> {
    prop_oneof![3 => Just(0), 3 => 0..SECOND, 2 => 0..100 * SECOND, 1 => 0..50 * HOUR]
}

fn history() -> impl Strategy<Value = Vec<(u64, Event)>> {
    prop::collection::vec((any_pause(), any_event()), 0..30)
}

/// A limit that is not as large as those of `any_limit`, so that holds matter. Places in flight have tests of their own:
/// a hold keeps them beside the counter.
fn limits() -> impl Strategy<Value = Limit> {
    let small = (1..30_u64, prop_oneof![Just(SECOND), Just(60 * SECOND), Just(HOUR)]).prop_flat_map(
        |(allowance, nanos)| {
            prop::sample::select(every_limit(allowance, nanos / allowance / 10 * 10 * allowance))
        },
    );
    prop_oneof![small, any_limit()]
        .prop_filter("places in flight", |limit| limit.admission() != Admission::InFlight)
}

/// The counter of a history in which all holds have ended, and that of the same history without holds.
fn ended(limit: &Limit, history: Vec<(u64, Event)>) -> (Subject, Counter) {
    let mut subject = Subject::new(limit);
    history.into_iter().for_each(|(pause, event)| subject.apply(pause, event));
    while !subject.open.is_empty() {
        subject.settle(0, 50);
    }
    let expected = subject.without_holds();
    (subject, expected)
}

proptest! {
    #[test]
    fn ended_holds_leave_what_was_used_charged_at_the_reservation(
        limit in limits(), history in history(), later in any_pause(),
    ) {
        let (subject, expected) = ended(&limit, history);
        for now in [subject.now, subject.now.plus(later)] {
            let [held, plain] = [&subject.counter, &expected].map(|counter| left(&limit, counter, now));
            match limit.admission() {
                // Others were admitted with their delays, so only the last place in the queue is given back.
                Admission::Delayed => prop_assert!(held <= plain),
                // A hold may have opened another step, and a partial step counts as a whole one on either side.
                Admission::AtOnce | Admission::InFlight if early(&limit) > 0 => {
                    let later = |counter| left(&limit, counter, now.plus(2 * limit.kind().window_nanos()));
                    prop_assert!(plain <= later(&subject.counter), "{held} {plain}");
                    prop_assert!(held <= later(&expected), "{held} {plain}");
                }
                Admission::AtOnce | Admission::InFlight => prop_assert_eq!(held, plain),
            }
        }
    }

    #[test]
    fn ended_holds_and_refunds_free_no_more_than_without_holds(
        limit in limits(),
        history in history(),
        refunds in prop::collection::vec((any_pause(), any_hits().prop_map(Event::Refund)), 0..5),
        seed in any::<u64>(),
    ) {
        let mut history = history;
        for (index, refund) in refunds.into_iter().enumerate() {
            let at = (seed.rotate_left(index as u32 * 7) % (history.len() as u64 + 1)) as usize;
            history.insert(at, refund);
        }
        let (subject, expected) = ended(&limit, history);
        // Tokens of a stepped bucket may come back up to two intervals later without the holds.
        let later = if early(&limit) > 0 { 2 * limit.kind().window_nanos() } else { 0 };
        let held = left(&limit, &subject.counter, subject.now);
        let plain = left(&limit, &expected, subject.now.plus(later));
        prop_assert!(held <= plain, "{} {}", held, plain);
    }

    #[test]
    fn open_holds_count_like_charges(limit in limits(), history in history()) {
        let mut subject = Subject::new(&limit);
        for (pause, event) in history {
            if !matches!(event, Event::Settle { .. }) {
                let event = match event {
                    Event::Reserve { hits, .. } => Event::Reserve { hits, ttl: HOLD_TTL_MAX * 1_000, on_expiry: OnExpiry::Charge },
                    Event::Settle { .. } | Event::Charge(_) | Event::Refund(_) => event,
                };
                subject.apply(pause, event);
            }
        }
        subject.kept = subject.open.iter().map(|(number, hits, ..)| (*number, *hits)).collect();
        prop_assert_eq!(left(&limit, &subject.counter, subject.now), left(&limit, &subject.without_holds(), subject.now));
    }
}

impl Holds {
    /// The bytes of the holds that are new or have changed since an earlier state, and of the ids that are gone. The
    /// places of a queue are ages, which always change.
    pub(crate) fn bytes_of_changes(&self, earlier: Option<&Self>) -> usize {
        let is_queue = matches!(self.limit.plain(), Limit::LeakyQueue(_));
        let is_same = |hold: &&Hold| earlier.is_some_and(|earlier| earlier.each.contains(hold));
        let holds = self.each.iter().filter(|hold| is_queue || !is_same(hold));
        let ended = self
            .ended
            .iter()
            .filter(|(id, ended)| earlier.is_none_or(|earlier| earlier.ended.get(*id) != Some(*ended)));
        let is_known =
            |id: &HoldId| self.ended.contains_key(id) || self.each.iter().any(|hold| hold.id == *id);
        let gone = earlier.into_iter().flat_map(|earlier| &earlier.each).filter(|hold| !is_known(&hold.id));
        holds.map(|hold| put(hold).len()).sum::<usize>()
            + ended.map(|changed| put(&changed).len()).sum::<usize>()
            + gone.map(|hold| put(&hold.id).len()).sum::<usize>()
    }

    /// The position in `log` of the entry of each hold.
    pub(crate) fn positions_in(&self, log: &LogCounter) -> Vec<(HoldId, Option<usize>)> {
        self.each.iter().map(|hold| (hold.id.clone(), log.index_of(hold.held.position))).collect()
    }
}
