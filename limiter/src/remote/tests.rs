//! Tests of calls whose counters are elsewhere, over a store in this process that answers when it is asked again.

use std::{
    pin::pin,
    task::{Context, Poll, Waker},
};

use super::*;
use crate::{
    algorithm::{Excess, FixedWindow, Operation, Span, Window},
    store::{Memory, OnFull, Role},
    time::{SECOND, Timestamp},
};

const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);

/// Applies operations at once, and answers them when the call is polled again.
#[derive(Debug)]
struct Later(Memory);

impl Later {
    fn apply(&self, CounterCheck { key, limit, operation, .. }: &CounterCheck) -> RemoteOutcome {
        let outcome = self.0.operate(*key, limit, operation, NOW);
        RemoteOutcome::of_counter(outcome.expect("each slot is here"))
    }

    fn left(&self, key: Key, limit: &Limit) -> u64 {
        self.0.admin().peek(key, limit, NOW).peek.remaining
    }
}

impl Submit for Later {
    fn submit(&self, Submission { checks, mode, .. }: Submission) -> Option<Outcomes> {
        let Mode::Each = mode else { return None };
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

    fn take_back_here(&self, _: Key, _: &Limit, _: &mut RemoteOutcome) {
        unreachable!("the counter decides each operation")
    }

    fn extent(&self) -> Extent {
        Extent::All
    }

    fn is_joining(&self) -> bool {
        false
    }

    fn budget_max(&self) -> Duration {
        Duration::from_secs(1)
    }
}

fn a_day(hits: u64) -> Limit {
    let window = Window::Aligned(Span::of_nanos(86_400 * SECOND).unwrap());
    Limit::FixedWindow(FixedWindow { limit: hits, window, excess: Excess::Refuse })
}

#[test]
fn finished_rounds_of_a_caller_that_goes_away_are_taken_back() {
    let store = Arc::new(Later(Memory::new(1 << 24, OnFull::Deny)));
    let (remote, limit) = (Remote::new(store.clone()), a_day(1));
    let keys = [1, 2].map(|number| Key::from_halves(number, number));
    let charge =
        |key| Check { key, limit: &limit, operation: Operation::Charge(1), on_refusal: OnRefusal::TakeBack };
    let checks = keys.map(charge);
    let refusal = Refusal { roles: [Role::default(); 2].into(), do_quotas_refuse: false };
    store.0.admin().replace(keys[1], &limit, NOW, 1);
    let connection = Caller::default();
    {
        let policies = [COUNTER_ONLY; 2];
        let mut call = pin!(remote.decide(&checks, &policies, None, &connection, refusal));
        let mut advance = || call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready();
        // The peeks expect a refusal by the second limit.
        assert!(!advance());
        store.0.admin().replace(keys[1], &limit, NOW, 0);
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
