//! What penalties promise beside the laws of their limits.

use super::*;

/// A bucket of one hit a minute, whose keys are refused for a minute after three refusals in a row, then two minutes, at
/// most five, and forgotten after an hour.
fn login() -> Penalized {
    let rate = Rate::new(NonZeroU64::MIN, NonZeroU64::new(60 * SECOND).unwrap());
    let bucket = TokenBucket { rate, burst: 1, excess: Excess::Refuse };
    let [first, max, forget_after] = [60, 300, 3_600].map(Span::from_seconds);
    let penalty = Penalty { after: 3, first, factor: 2, max, forget_after };
    Penalized::new(Limit::TokenBucket(bucket), penalty)
}

const START: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);

/// A counter of [`login`] with its time.
struct Login {
    limit: Penalized,
    counter: Counter,
    now: Timestamp,
}

impl Login {
    fn new() -> Self {
        Self { limit: login(), counter: Counter::default(), now: START }
    }

    fn wait(&mut self, seconds: u64) {
        self.now = self.now.plus(seconds * SECOND);
    }

    /// The seconds after which a charge would pass; `None` if it has passed.
    fn charge(&mut self) -> Option<u64> {
        match self.limit.decide(&mut self.counter, self.now, Operation::Charge(1)).verdict {
            Verdict::Refuse { retry_after } => Some(retry_after.unwrap().as_secs()),
            Verdict::Pass | Verdict::Delay(_) => None,
        }
    }

    /// Passes once, and is refused until a penalty begins. Returns its length in seconds.
    fn provoke(&mut self) -> u64 {
        assert_eq!(self.charge(), None);
        assert_eq!((self.charge(), self.charge()), (Some(60), Some(60)));
        self.charge().unwrap()
    }
}

#[test]
fn penalties_grow_up_to_the_greatest_length() {
    let mut login = Login::new();
    for expected in [60, 120, 240, 300, 300] {
        let length = login.provoke();
        assert_eq!(length, expected);
        login.wait(length);
    }
}

#[test]
fn refusals_during_a_penalty_do_not_lengthen_it() {
    let mut login = Login::new();
    login.provoke();
    login.wait(60);
    assert_eq!(login.provoke(), 120);
    for second in 1..120 {
        login.wait(1);
        assert_eq!(login.charge(), Some(120 - second));
    }
    login.wait(1);
    assert_eq!(login.provoke(), 240);
}

#[test]
fn pass_ends_a_row_of_refusals() {
    let mut login = Login::new();
    for _ in 0..5 {
        assert_eq!((login.charge(), login.charge(), login.charge()), (None, Some(60), Some(60)));
        login.wait(60);
    }
}

#[test]
fn charge_that_is_taken_back_does_not_end_a_row() {
    let mut login = Login::new();
    assert_eq!((login.charge(), login.charge(), login.charge()), (None, Some(60), Some(60)));
    login.wait(60);
    let before = login.counter.clone();
    let decision = login.limit.decide(&mut login.counter, login.now, Operation::Charge(1));
    login.limit.undo(&mut login.counter, decision.receipt.unwrap(), login.now);
    assert_eq!(login.counter.record(), before.record());
    let two = login.limit.decide(&mut login.counter, login.now, Operation::Charge(2));
    assert!(!two.verdict.passes());
    assert_eq!(login.charge(), Some(60), "the penalty has begun");
}

#[test]
fn penalties_are_forgotten_after_quiet() {
    let mut login = Login::new();
    login.provoke();
    login.wait(60);
    assert_eq!(login.provoke(), 120);
    login.wait(3_599);
    assert_eq!(login.provoke(), 240);
    login.wait(3_600);
    assert_eq!(login.limit.idle_at(&login.counter), login.now);
    assert_eq!(login.provoke(), 60);
}

#[test]
fn counter_without_refusals_has_no_record() {
    let mut login = Login::new();
    for _ in 0..3 {
        assert_eq!(login.charge(), None);
        assert!(matches!(login.counter, Counter::Debt(_)));
        assert_eq!(login.charge(), Some(60));
        assert!(matches!(login.counter, Counter::Penalized(_)));
        for _ in 0..2 {
            login.wait(60);
            assert_eq!(login.charge(), None);
        }
        assert!(matches!(login.counter, Counter::Debt(_)), "the second pass forgets the row");
        login.wait(60);
    }
}

#[test]
fn limit_without_penalty_ignores_the_record_and_keeps_it() {
    let mut login = Login::new();
    login.provoke();
    let record = login.counter.record().copied();
    login.wait(59);
    let limit = login.limit.limit().clone();
    let charge = Operation::Charge(1);
    assert_eq!(
        limit.decide(&mut login.counter, login.now, charge).verdict,
        Verdict::Refuse { retry_after: Some(Duration::from_secs(1)) }
    );
    assert_eq!(login.counter.record().copied(), record);
    assert!(limit.idle_at(&login.counter) < login.limit.idle_at(&login.counter));
}

#[test]
fn penalty_of_a_concurrency_limit_names_its_end() {
    let limit = Limit::Concurrency(Concurrency { max_in_flight: 1, hold_max: Span::from_seconds(60) });
    let limit = Penalized::new(limit, *login().penalty());
    let mut counter = Counter::default();
    let charge = |counter: &mut Counter| limit.decide(counter, START, Operation::Charge(1)).verdict;
    assert!(charge(&mut counter).passes());
    for _ in 0..4 {
        assert_eq!(
            charge(&mut counter),
            Verdict::Refuse { retry_after: None },
            "no end of the call is known"
        );
    }
    limit.decide(&mut counter, START, Operation::Refund(1));
    assert_eq!(charge(&mut counter), Verdict::Refuse { retry_after: Some(Duration::from_secs(60)) });
}

/// A penalty as the documentation describes it.
#[derive(Default)]
struct Model {
    row: u32,
    penalties: u32,
    until: Timestamp,
    last: Option<Timestamp>,
}

impl Model {
    fn refuses(&mut self, penalty: &Penalty, now: Timestamp) -> bool {
        let quiet = self.last.is_some_and(|last| last.plus(penalty.forget_after.nanos()) <= now);
        if quiet && self.until <= now {
            *self = Self::default();
        }
        if now < self.until {
            self.last = self.last.max(Some(now));
        }
        now < self.until
    }

    fn decided(&mut self, penalty: &Penalty, passes: bool, now: Timestamp) {
        self.row = if passes { 0 } else { self.row + 1 };
        if passes {
            return;
        }
        self.last = self.last.max(Some(now));
        if self.row == penalty.after {
            let times = u64::from(penalty.factor).saturating_pow(self.penalties);
            let nanos = penalty.first.nanos().saturating_mul(times).min(penalty.max.nanos());
            (self.until, self.penalties, self.row) = (now.plus(nanos), self.penalties + 1, 0);
        }
    }
}

proptest! {
    /// A charge passes exactly if the limit lets it pass and no penalty lasts. Its limit decides on a counter of its own.
    #[test]
    fn charge_passes_if_the_limit_passes_it_and_no_penalty_lasts(
        limit in penalized(plain_limit()), history in history(),
    ) {
        let (mut now, mut counter) = (history.0, Counter::default());
        let (mut alone, mut model) = (limit.limit().fresh(), Model::default());
        for (pause, operation) in history.1 {
            now = now.plus(pause);
            let decision = limit.decide(&mut counter, now, operation);
            let Operation::Charge(_) = operation else {
                limit.limit().decide(&mut alone, now, operation);
                continue;
            };
            if model.refuses(limit.penalty(), now) {
                prop_assert!(!decision.verdict.passes(), "a penalty lasts");
                if limit.excess() == Excess::Count {
                    limit.limit().decide(&mut alone, now, operation);
                }
            } else {
                let passes = limit.limit().decide(&mut alone, now, operation).verdict.passes();
                prop_assert_eq!(decision.verdict.passes(), passes);
                model.decided(limit.penalty(), passes, now);
            }
            prop_assert_eq!(counter.plain(), &alone);
        }
    }

    #[test]
    fn peek_refund_and_hits_used_elsewhere_leave_penalties_alone(
        limit in penalized(plain_limit()), history in history(), hits in any_hits(),
    ) {
        let (mut counter, now) = law::after(&limit, &history);
        let record = counter.record().copied();
        limit.decide(&mut counter, now, Operation::Peek);
        limit.decide(&mut counter, now, Operation::Refund(hits));
        limit.charge_at(&mut counter, hits, now, now);
        Limit::Penalized(limit).charge_used(&mut counter, hits, now);
        prop_assert_eq!(counter.record().copied(), record);
    }

    #[test]
    fn everything_is_forgotten_after_quiet(
        limit in penalized(plain_limit()), history in history(), later in any_pause(),
    ) {
        let (counter, now) = law::after(&limit, &history);
        let Penalty { max, forget_after, .. } = limit.penalty();
        let then = now.plus(max.nanos().max(forget_after.nanos())).max(limit.limit().idle_at(&counter)).plus(later);
        prop_assert!(limit.idle_at(&counter) <= then);
        prop_assert_eq!(law::remaining(&limit, &counter, then), limit.allowance());
        let mut charged = counter;
        limit.decide(&mut charged, then, Operation::Charge(1));
        prop_assert!(charged.record().is_none_or(|record| record.penalties <= 1 && record.refusals <= 1));
    }

    #[test]
    fn each_penalty_is_at_least_as_long_as_the_one_before(penalty in penalty(), others in 0..100_u32) {
        let [one, next] = [others, others + 1].map(|others| penalty.nanos(others));
        prop_assert!(penalty.first.nanos() <= one && one <= next && next <= penalty.max.nanos());
    }

    #[test]
    fn penalty_has_the_encoding_of_its_limit_and_of_no_other_penalty(limit in penalized(plain_limit())) {
        let encoded = postcard::to_stdvec(&limit).unwrap();
        prop_assert_eq!(&postcard::from_bytes::<Penalized>(&encoded).unwrap(), &limit);
        let of_penalized = postcard::to_stdvec(&(Limit::Penalized(limit.clone()), limit.penalty())).unwrap();
        prop_assert!(postcard::from_bytes::<Penalized>(&of_penalized).is_err());
    }
}
