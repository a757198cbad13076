//! Tests of calls whose counters are elsewhere, over a store in this process that answers when it is asked again.

use std::{
    pin::pin,
    sync::{
        MutexGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
};

use super::*;
use tollgate_counter::{
    algorithm::{Excess, FixedWindow, Operation, Span, Window},
    time::{SECOND, Timestamp},
};
use tollgate_rules::{ForwardPolicy, OnOwnerUnavailable};
use tollgate_store::{Check, CheckRole, LimitOrigin, Memory, OnFull};

const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);

/// Applies operations at once, unless it is unreachable, and answers them when the call is polled again.
#[derive(Debug)]
struct Later {
    memory: Memory,
    is_unreachable: AtomicBool,
    local_share: Mutex<LocalShare>,
}

impl Later {
    fn new() -> Arc<Self> {
        let memory = Memory::new(1 << 24, OnFull::Deny);
        Arc::new(Self { memory, is_unreachable: AtomicBool::new(false), local_share: Mutex::default() })
    }

    fn apply(&self, check: &CounterCheck) -> RemoteOutcome {
        if self.is_unreachable.load(Relaxed) {
            return RemoteOutcome::unreachable();
        }
        let outcome = self.memory.operate_by(check.key, (&check.limit, check.origin), &check.operation, NOW);
        RemoteOutcome::from_counter(outcome.expect("each slot is here"))
    }

    fn left(&self, key: Key, limit: &Limit) -> u64 {
        self.memory.peek(key, limit, NOW).peek.remaining
    }
}

impl Submit for Later {
    fn submit(&self, Submission { checks, mode, .. }: Submission<'_>) -> Option<Outcomes> {
        let SubmissionMode::Each = mode else { return None };
        let mut outcomes = Some(checks.iter().map(|check| self.apply(check)).collect());
        let mut was_asked = false;
        Some(Box::pin(std::future::poll_fn(move |_| match outcomes.take_if(|_| was_asked) {
            Some(outcomes) => Poll::Ready(outcomes),
            None => {
                was_asked = true;
                Poll::Pending
            }
        })))
    }

    fn send(&self, checks: CounterChecks) {
        checks.iter().for_each(|check| {
            self.apply(check);
        });
    }

    fn local_share(&self) -> MutexGuard<'_, LocalShare> {
        lock(&self.local_share)
    }

    fn local_share_basis(&self) -> LocalShareBasis {
        LocalShareBasis { replicas: 2, now: NOW }
    }

    fn extent(&self) -> RemoteExtent {
        RemoteExtent::All
    }

    fn is_joining(&self) -> bool {
        false
    }

    fn budget_max(&self) -> Duration {
        Duration::from_secs(1)
    }
}

fn a_day(hits: u64) -> Limit {
    let window = Window::Aligned(Span::from_nanos(86_400 * SECOND).unwrap());
    Limit::FixedWindow(FixedWindow { limit: hits, window, excess: Excess::Refuse })
}

fn charge(key: Key, limit: &Limit) -> Check<'_> {
    Check {
        key,
        limit,
        operation: Operation::Charge(1),
        on_refusal: OnRefusal::TakeBack,
        origin: LimitOrigin::Rule,
    }
}

/// Decides charges of keys of one limit, each by its policy, as one call.
fn decide(remote: &Remote, limit: &Limit, charges: &[(Key, OnOwnerUnavailable)]) -> (Vec<bool>, Vec<bool>) {
    let check = |(key, on_owner_unavailable): &(Key, OnOwnerUnavailable)| {
        let policy = ForwardPolicy { on_owner_unavailable: *on_owner_unavailable, lease: false };
        CounterCheck::new(&charge(*key, limit), policy)
    };
    let checks: CounterChecks = charges.iter().map(check).collect();
    let refusal =
        Refusal { roles: checks.iter().map(|_| CheckRole::default()).collect(), do_quotas_refuse: false };
    let connection = Caller::default();
    let mut call = pin!(remote.decide(&checks, None, &connection, &refusal));
    let decided = loop {
        if let Poll::Ready(decided) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            break decided.unwrap();
        }
    };
    (decided.decisions.iter().map(|decision| decision.verdict.passes()).collect(), decided.degraded.to_vec())
}

#[test]
fn unreachable_counters_are_decided_as_their_policies_say() {
    let (store, limit, key) = (Later::new(), a_day(10), Key::from_halves(1, 1));
    let (remote, other) = (Remote::new(store.clone()), Key::from_halves(2, 2));
    store.is_unreachable.store(true, Relaxed);
    let passes = |on_owner_unavailable| {
        let (passes, degraded) = decide(&remote, &limit, &[(key, on_owner_unavailable)]);
        assert_eq!(degraded, [true]);
        passes[0]
    };
    assert!(passes(OnOwnerUnavailable::Allow) && !passes(OnOwnerUnavailable::Deny));
    assert_eq!((0..10).filter(|_| passes(OnOwnerUnavailable::LocalShare)).count(), 5);
    assert_eq!(store.local_share().decided(), 12);
    // The second charge refuses the call, so the first one is taken back.
    let (two, charges) = (a_day(2), [(other, OnOwnerUnavailable::LocalShare); 2]);
    assert_eq!(decide(&remote, &two, &charges).0, [true, false]);
    let admitted: Vec<(Key, Admitted)> = store.local_share().take_admitted_where(|_| true).collect();
    store.is_unreachable.store(false, Relaxed);
    for (key, Admitted { limit, counter }) in admitted {
        store.apply(&CounterCheck::by_counter(key, limit, CounterOperation::Absorb(counter)));
    }
    assert_eq!((store.left(key, &limit), store.left(other, &two)), (5, 2));
}

#[test]
fn finished_rounds_of_a_caller_that_goes_away_are_taken_back() {
    let store = Later::new();
    let (remote, limit) = (Remote::new(store.clone()), a_day(1));
    let keys = [1, 2].map(|number| Key::from_halves(number, number));
    let checks = keys.map(|key| CounterCheck::new(&charge(key, &limit), COUNTER_ONLY));
    let refusal = Refusal { roles: [CheckRole::default(); 2].into(), do_quotas_refuse: false };
    store.memory.operate(keys[1], &limit, &CounterOperation::Set(1), NOW).unwrap();
    let connection = Caller::default();
    {
        let mut call = pin!(remote.decide(&checks, None, &connection, &refusal));
        let mut advance = || call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        // The peeks expect a refusal by the second limit.
        assert!(!advance());
        store.memory.operate(keys[1], &limit, &CounterOperation::Set(0), NOW).unwrap();
        // The second limit is charged, and passes now.
        assert!(!advance());
        assert_eq!(keys.map(|key| store.left(key, &limit)), [1, 0]);
        // The first limit is being charged.
        assert!(!advance());
        assert_eq!(connection.open_checks(), 2);
    }
    assert_eq!(store.left(keys[1], &limit), 1);
    assert_eq!(connection.open_checks(), 0);
}
