//! Laws of the cache, with a clock that is moved.

use tollgate_counter::descriptor::Entry;
use tollgate_rules::Rules;

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const START: Timestamp = Timestamp::from_nanos(1_000_000_000_000);

/// A cache, and the rule whose keys it holds.
struct World {
    cache: LimitCache,
    own: Arc<OwnBounds>,
    now: Timestamp,
}

impl World {
    fn new(entries: usize) -> Self {
        let settings = LimitCacheSettings {
            entries,
            ttl: 30 * SECOND,
            absent_ttl: 10 * SECOND,
            wait: Duration::from_millis(5),
        };
        Self { cache: LimitCache::new(settings, START), own: own("100"), now: START }
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
    }

    /// What is said of a key: the number that decides, if the store names one.
    fn find(&self, key: u64) -> Said {
        self.find_by(&self.own, key)
    }

    fn find_by(&self, own: &Arc<OwnBounds>, key: u64) -> Said {
        let name = || ("d".to_owned(), format!("user={key}"));
        match self.cache.find(Key::from_halves(key, key << 32 | key), own, self.now, name) {
            KeyLimit::Stored(known) => Said::Number(known.terms.displayed_limit.requests_per_unit),
            KeyLimit::Absent => Said::Absent,
            KeyLimit::Unknown => Said::Unknown,
            KeyLimit::Pending(_) => Said::Pending,
        }
    }

    /// The look-ups that are queued.
    fn queued(&self) -> Vec<LimitLookup> {
        let mut pending = self.cache.pending();
        pending.queue.drain(..).collect()
    }

    fn answer_all(&self, answer: &LookupAnswer) -> usize {
        let queued = self.queued();
        let number = queued.len();
        for lookup in queued {
            let _invalid = self.cache.answer(lookup, answer.clone(), self.now);
        }
        number
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Said {
    Number(u64),
    Absent,
    Unknown,
    Pending,
}

fn own(requests: &str) -> Arc<OwnBounds> {
    let rule = format!("{{unit: minute, requests_per_unit: {requests}, own: {{from: source}}}}");
    let yaml = format!("domain: d\ndescriptors:\n- key: user\n  rate_limit: {rule}\n");
    let rules = Rules::parse("rules.yaml", &yaml).unwrap();
    let keyed = tollgate_rules::KeyedRules::new(
        Some(Arc::new(rules)),
        tollgate_counter::descriptor::Secret::from_bytes([0; 16]),
    );
    let found = keyed.domain("d").unwrap().find(&[Entry::new("user", "1")]).unwrap();
    found.rule.options().own.clone().unwrap()
}

fn value(number: u64) -> LookupAnswer {
    let json = format!("{{\"requests_per_unit\": {number}}}").into_bytes();
    LookupAnswer::Value { json, etag: Some("\"tag\"".into()) }
}

#[test]
fn key_is_looked_up_once_and_then_cached() {
    let world = World::new(100);
    assert_eq!([world.find(1), world.find(1), world.find(2)], [Said::Pending, Said::Pending, Said::Pending]);
    let texts: Vec<_> = world.queued().into_iter().map(|lookup| lookup.descriptor).collect();
    assert_eq!(texts, ["user=1", "user=2"]);
    // They are under way.
    assert_eq!((world.find(1), world.queued().len()), (Said::Pending, 0));
}

#[test]
fn wait_ends_with_the_look_up() {
    let world = World::new(100);
    let name = || ("d".to_owned(), "user=1".to_owned());
    let found = world.cache.find(Key::from_halves(1, 1), &world.own, world.now, name);
    let KeyLimit::Pending(mut pending) = found else { panic!("{found:?}") };
    let mut ended = Box::pin(pending.changed());
    let mut poll = || {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        ended.as_mut().poll(&mut context).is_ready()
    };
    assert!(!poll());
    world.answer_all(&value(5));
    assert!(poll());
}

#[test]
fn old_limit_is_used_until_the_new_one_is_read() {
    let mut world = World::new(100);
    world.find(1);
    world.answer_all(&value(5));
    world.pass(29 * SECOND);
    assert_eq!((world.find(1), world.queued().len()), (Said::Number(5), 0));
    world.pass(SECOND);
    assert_eq!(world.find(1), Said::Number(5));
    assert_eq!(world.find(1), Said::Number(5));
    let lookups = world.queued();
    assert_eq!((lookups.len(), lookups[0].etag()), (1, Some("\"tag\"")));
    for lookup in lookups {
        world.cache.answer(lookup, value(7), world.now).unwrap();
    }
    assert_eq!((world.find(1), world.queued().len()), (Said::Number(7), 0));
}

#[test]
fn unchanged_limit_is_valid_for_another_ttl() {
    let mut world = World::new(100);
    world.find(1);
    world.answer_all(&value(5));
    world.pass(30 * SECOND);
    world.find(1);
    assert_eq!(world.answer_all(&LookupAnswer::Unchanged), 1);
    world.pass(29 * SECOND);
    assert_eq!((world.find(1), world.queued().len()), (Said::Number(5), 0));
}

#[test]
fn absent_key_is_cached_for_its_own_time() {
    let mut world = World::new(100);
    world.find(1);
    world.answer_all(&LookupAnswer::Absent);
    world.pass(9 * SECOND);
    assert_eq!((world.find(1), world.queued().len()), (Said::Absent, 0));
    world.pass(SECOND);
    assert_eq!((world.find(1), world.answer_all(&value(5))), (Said::Absent, 1));
    assert_eq!(world.find(1), Said::Number(5));
    world.pass(30 * SECOND);
    world.find(1);
    world.answer_all(&LookupAnswer::Absent);
    assert_eq!(world.find(1), Said::Absent);
}

#[test]
fn store_that_is_down_forgets_nothing_and_is_asked_once_a_second() {
    let mut world = World::new(100);
    world.find(1);
    world.answer_all(&value(5));
    for _ in 0..100 {
        world.pass(30 * SECOND);
        assert_eq!(world.find(1), Said::Number(5));
        assert_eq!(world.answer_all(&LookupAnswer::Failed), 1);
        assert_eq!((world.find(1), world.queued().len()), (Said::Number(5), 0));
    }
    // A key that was never known does not wait a second time.
    assert_eq!((world.find(2), world.answer_all(&LookupAnswer::Failed)), (Said::Pending, 1));
    assert_eq!((world.find(2), world.queued().len()), (Said::Unknown, 0));
    world.pass(SECOND);
    assert_eq!((world.find(2), world.answer_all(&value(7))), (Said::Unknown, 1));
    assert_eq!(world.find(2), Said::Number(7));
}

#[test]
fn value_that_is_no_limit_is_an_error_and_the_old_one_stays() {
    let mut world = World::new(100);
    let answer = |world: &World, json: &str| {
        let lookup = world.queued().pop().unwrap();
        world.cache.answer(lookup, LookupAnswer::Value { json: json.into(), etag: None }, world.now)
    };
    world.find(1);
    assert!(answer(&world, "garbage").is_err());
    assert_eq!(world.find(1), Said::Unknown);
    world.pass(30 * SECOND);
    world.find(1);
    answer(&world, r#"{"requests_per_unit": 5}"#).unwrap();
    world.pass(30 * SECOND);
    world.find(1);
    assert!(answer(&world, r#"{"requests_per_unit": 6, "per": "user"}"#).unwrap_err().contains("`per`"));
    assert_eq!(world.find(1), Said::Number(5));
    assert_eq!(world.cache.stats.invalid.get(), 2);
}

#[test]
fn limit_ends_at_its_expiry() {
    let mut world = World::new(100);
    world.find(1);
    let json = br#"{"requests_per_unit": 5, "expires_at": "1970-01-01T00:16:50Z"}"#.to_vec();
    world.answer_all(&LookupAnswer::Value { json, etag: None });
    world.pass(9 * SECOND);
    assert_eq!(world.find(1), Said::Number(5));
    world.pass(SECOND);
    assert_eq!((world.find(1), world.queued().len()), (Said::Absent, 0));
}

#[test]
fn limit_is_read_again_after_its_rule_has_changed() {
    let world = World::new(100);
    world.find(1);
    world.answer_all(&value(5));
    let changed = own("200");
    assert_eq!((world.find_by(&own("100"), 1), world.queued().len()), (Said::Number(5), 0));
    assert_eq!((world.find_by(&changed, 1), world.find_by(&changed, 1)), (Said::Number(5), Said::Number(5)));
    assert_eq!(world.answer_all(&value(6)), 1);
    assert_eq!(world.find_by(&changed, 1), Said::Number(6));
}

#[test]
fn flood_of_keys_is_looked_up_in_bounds_and_stays_in_memory() {
    const KEYS: u64 = 200_000;
    let world = World::new(20_000);
    for key in 1..=KEYS {
        if world.find(key) == Said::Unknown {
            assert_eq!(world.answer_all(&value(key)), UNDER_WAY_MAX);
        }
    }
    world.answer_all(&value(1));
    let heap =
        KnownLimit { terms: terms(&world.own), expires_at: START, etag: Some("\"tag\"".into()) }.bytes();
    let tables = world.cache.entries.memory_used().total() as u64;
    let bytes = tables + world.cache.len() as u64 * heap;
    assert!(
        bytes <= 20_000 * ENTRY_BYTES,
        "{bytes} bytes, {tables} in tables, {} entries",
        world.cache.len()
    );
    assert!(world.cache.len() > 10_000, "{}", world.cache.len());
    assert!(world.cache.stats.skipped.get() > 0);
}

fn terms(own: &OwnBounds) -> StoredTerms {
    own.stored(br#"{"requests_per_unit": 5}"#).unwrap().terms
}
