//! Whatever only looks leaves each counter as it is, byte for byte.

use super::*;
use tollgate_store::{EncodedSlot, Epoch, Slot};

const RULES_WITH_PENALTY: &str = "\
domain: p
descriptors:
  - key: user
    rate_limit: &limit
      {unit: minute, requests_per_unit: 9, algorithm: sliding_log, penalty: {after: 1, first: 30s}}
  - {key: denied, rate_limit: {unit: minute, requests_per_unit: 9, algorithm: token_bucket, count_denied: true}}
  - {key: classic, rate_limit: {unit: minute, requests_per_unit: 9}}
  - {key: places, rate_limit: {algorithm: concurrency, max_in_flight: 9}}
  - {key: both, rate_limit: {unit: minute, requests_per_unit: 9, candidate: *limit}}
";

const DOMAIN: &str = "p";

fn entries(key: &str) -> [(&str, &str); 1] {
    [(key, "ann")]
}

fn request_of<'a>(entries: &'a [Entry<'a>], operation: Operation) -> Request<'a> {
    let descriptor = || Descriptor { entries, operation, limit: None };
    Request::new(DOMAIN, [descriptor(), descriptor()], None).unwrap()
}

/// All counters with their reservations, as a snapshot has them: the number of changes and the bytes of each slot.
fn bytes(limiter: &Limiter) -> Vec<(Slot, u64, Vec<u8>)> {
    let Limiter { memory, clock, .. } = limiter;
    let copies = memory.each_slot().map(|slot| memory.copy(slot, Epoch(1))(clock.now()));
    let encoded = copies.filter_map(|copy| copy.encode(clock.now()));
    encoded.map(|EncodedSlot { slot, seq, data, .. }| (slot, seq, data)).collect()
}

/// What only looks at the counter of a descriptor, with its name.
type Look = (&'static str, fn(&Limiter, &str));

const LOOKS: &[Look] = &[
    ("peek", |limiter, key| assert!(limiter.peek(DOMAIN, &entries(key)).is_ok())),
    ("peek of a prepared descriptor", |limiter, key| {
        assert!(limiter.prepare(DOMAIN, &[], [key]).peek(["ann"]).is_ok());
    }),
    ("peek of a call with several descriptors", |limiter, key| {
        let entries = [Entry::new(key, "ann")];
        let request = request_of(&entries, Operation::Peek);
        assert!(limiter.view().decide(&request).is_ok());
    }),
    ("explanation of a charge", |limiter, key| {
        let entries = [Entry::new(key, "ann")];
        for hits in [1, 99] {
            let request = request_of(&entries, Operation::Charge(hits));
            assert!(at_once(limiter.view().explain(&request)).is_ok());
        }
    }),
    ("look of an operator", |limiter, key| {
        let (view, entries) = (limiter.view(), [Entry::new(key, "ann")]);
        let counter = at_once(view.counter_ref(DOMAIN, &entries)).unwrap();
        assert!(at_once(view.peek(&counter)).is_ok());
    }),
    ("statistics", |limiter, _| assert!(limiter.memory.stats().live > 0)),
    ("copy of a slot", |limiter, _| {
        limiter.memory.each_slot().for_each(|slot| drop(limiter.memory.whole(slot)))
    }),
];

#[test]
fn whatever_looks_leaves_the_bytes_of_counters() {
    for key in ["user", "denied", "classic", "places", "both"] {
        let rules = Rules::parse("test", RULES_WITH_PENALTY).unwrap();
        let memory = Memory::new(1 << 24, OnFull::Deny);
        let limiter =
            Limiter::new(Arc::new(ActiveRules::from_rules(rules, NOW)), Arc::new(memory), Clock::manual(NOW));
        let entries = entries(key);
        limiter.check(DOMAIN, &entries, 4).unwrap();
        let held = limiter.reserve(DOMAIN, &entries, 2, Duration::from_secs(60)).unwrap();
        assert!(held.id.is_some());
        for used in ["not at all", "beyond its limit"] {
            // The first look brings the estimate by which counters are evicted up to date.
            limiter.peek(DOMAIN, &entries).unwrap();
            let before = bytes(&limiter);
            assert!(!before.is_empty());
            for (name, look) in LOOKS {
                for _ in 0..2 {
                    look(&limiter, key);
                    assert_eq!(bytes(&limiter), before, "{name} of `{key}`, refused {used}");
                }
            }
            limiter.check(DOMAIN, &entries, 99).unwrap();
        }
    }
}
