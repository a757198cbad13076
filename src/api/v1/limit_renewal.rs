//! Limits of keys of their own follow the rules: what decides is their numbers within the bounds of the active rule. If the
//! rule has another algorithm or window, or is gone, the limits of its former counters end after a day.

use std::{fmt::Write as _, future::pending, sync::Arc, time::Duration};

use futures_util::{FutureExt as _, StreamExt as _, stream};
use tokio::time::sleep;
use tollgate_counter::{
    descriptor::{Entry, Key},
    time::Timestamp,
};
use tollgate_limiter::limiter::{ActiveView, NoCounter, OwnLimitsOf};
use tollgate_rules::{ActiveRules, Domain, Rules};
use tollgate_store::{OwnLimitChange, OwnLimitState, OwnTerms};
use tracing::{info, warn};

use crate::api::{
    metrics::OwnLimitResult,
    service::Api,
    v1::{
        own_limits::{ASKED_AT_ONCE, OwnLimitRecord, PAGE_MAX, millis},
        reset::unescaped,
    },
};

/// How often a changed rule is looked for in limits of their own after a change of the rules: again later, because slots
/// may come from a replica that has read them later.
const FOLLOWED_AFTER: [Duration; 3] = [Duration::ZERO, Duration::from_secs(10), Duration::from_secs(60)];
/// The pause between two further searches, for limits that are unused for too long.
const FOLLOWED_EVERY: Duration = Duration::from_secs(3_600);
/// The pause between two steps of that over a shared store, which other replicas take too.
const STORE_PAUSE: Duration = Duration::from_millis(20);
/// How long a limit is retained whose rule has another algorithm or window, or is gone.
const UNUSED_MAX: Duration = Duration::from_secs(24 * 3_600);

/// What becomes of a limit of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Renewal {
    /// The limit decides as it did.
    Kept,
    /// The limit decides by other numbers.
    Renewed,
    /// The limit has just become unused: it is retained for a rule with its algorithm and window.
    Noted,
    /// The limit has been unused for a while.
    Unused,
    /// The limit was unused for too long.
    Dropped,
}

impl Api {
    /// Lets limits of their own follow the rules, for as long as it is polled.
    pub async fn follow_rules(self, active_rules: Arc<ActiveRules>) {
        let mut followed = String::new();
        let (mut pass, mut has_unused) = (FOLLOWED_AFTER.len(), false);
        loop {
            let changed = active_rules.changed();
            let view = self.limiter.view();
            let rules = rules_with_own(&view);
            if rules != followed {
                (followed, pass) = (rules, 0);
                self.warn_without_source(&view);
            }
            // A shared store is searched by every replica, and as a whole.
            let is_shared = view.has_no_counters();
            drop(view);
            let renewing = async {
                loop {
                    match FOLLOWED_AFTER.get(pass) {
                        Some(pause) => sleep(*pause).await,
                        None if is_shared && !has_unused => pending().await,
                        None => sleep(FOLLOWED_EVERY).await,
                    }
                    has_unused = self.renew_own_limits().await;
                    pass += 1;
                }
            };
            tokio::select! {
                () = changed => {}
                () = renewing => {}
            }
        }
    }

    /// Warns of rules whose keys look up limits, if there is no store.
    fn warn_without_source(&self, view: &ActiveView<'_>) {
        let rules = view.rules().rules().into_iter().flat_map(Rules::domains).flat_map(Domain::rules);
        let looked_up = rules.filter(|rule| rule.looks_up_limits()).count();
        if looked_up > 0 && !self.limiter.looks_up_limits() {
            warn!(
                rules = looked_up,
                "rules have `own: {{from: source}}`, and limits.source is none: their keys have the numbers of the rule"
            );
        }
    }

    /// Renews what decides by limits of their own, of the counters that this replica owns. Returns whether some are unused.
    async fn renew_own_limits(&self) -> bool {
        let mut position = None;
        let [mut renewed, mut noted, mut unused, mut dropped] = [0_u64; 4];
        loop {
            let view = self.limiter.view();
            let applies = |key, state: &OwnLimitState| state.terms.is_some().then(|| (key, state.clone()));
            let page = view.own_limits(OwnLimitsOf::ThisReplica, position, PAGE_MAX, applies).await;
            let Ok((states, next)) = page else { break };
            let each: Vec<_> =
                states.into_iter().map(|(key, state)| renew(&view, key, state).boxed()).collect();
            let done: Vec<_> = stream::iter(each).buffered(ASKED_AT_ONCE).collect().await;
            for renewal in done {
                match renewal {
                    Renewal::Kept => {}
                    Renewal::Renewed => renewed += 1,
                    Renewal::Noted => noted += 1,
                    Renewal::Unused => unused += 1,
                    Renewal::Dropped => dropped += 1,
                }
            }
            position = next;
            if position.is_none() {
                break;
            }
            if view.has_no_counters() {
                sleep(STORE_PAUSE).await;
            }
        }
        self.metrics.own_limits(OwnLimitResult::Dropped).add(dropped);
        if renewed + noted + dropped > 0 {
            let unused = noted + unused;
            info!(renewed, unused, dropped, "limits of their own follow the changed rules");
        }
        noted + unused > 0
    }
}

/// The rules whose keys may have limits of their own, as text that is compared.
fn rules_with_own(view: &ActiveView<'_>) -> String {
    let mut text = String::new();
    let rules = view.rules().rules().into_iter().flat_map(Rules::domains).flat_map(Domain::rules);
    for rule in rules.filter(|rule| rule.options().own.is_some()) {
        let _ = write!(text, "{} {:?} {:?};", rule.path, rule.limit(), rule.options().own);
    }
    text
}

/// Renews a limit of its own that no longer decides as its numbers within the bounds of the rule do.
async fn renew(view: &ActiveView<'_>, key: Key, state: OwnLimitState) -> Renewal {
    let Some(limit) = state.terms.as_ref().map(|terms| terms.limit.clone()) else { return Renewal::Kept };
    let Some((renewal, change)) = renewed_limit(view, key, state).await else { return Renewal::Kept };
    let Some(change) = change else { return renewal };
    let outcome = view.set_own_limit(key, &limit, change).await;
    // Another replica, or a caller, may have changed it.
    if outcome.is_ok_and(|outcome| outcome.refusal.is_none()) { renewal } else { Renewal::Kept }
}

/// What becomes of a limit of its own, and the change that this needs.
async fn renewed_limit(
    view: &ActiveView<'_>,
    key: Key,
    state: OwnLimitState,
) -> Option<(Renewal, Option<OwnLimitChange>)> {
    let OwnLimitState { terms: decides, version, expires_after, record: bytes } = state;
    let decides = decides?;
    let record = serde_json::from_slice::<OwnLimitRecord>(&bytes).ok()?;
    let escaped: Vec<_> = record.entries.iter().map(|(key, value)| Entry::new(key, value)).collect();
    let parts = unescaped(&escaped)?;
    let entries: Vec<_> = parts.iter().map(|(key, value)| Entry::new(&**key, &**value)).collect();
    let counter = match view.counter_ref(&record.domain, &entries).await {
        Ok(counter) => Some(counter),
        Err(NoCounter::NoDomain | NoCounter::NoRule | NoCounter::Unlimited) => None,
        Err(NoCounter::NoRules | NoCounter::Unreachable | NoCounter::NoStore) => return None,
    };
    let with = |terms, record| OwnLimitChange { terms, expires_after, record, replaces: Some(version) };
    let Some(counter) = counter.filter(|counter| counter.limit.kind() == decides.limit.kind()) else {
        return Some(match unused(&record, view.now()) {
            (Renewal::Dropped, _) => (Renewal::Dropped, Some(with(None, Box::default()))),
            (renewal, noted) => (renewal, noted.map(|noted| with(Some(decides), noted.bytes()))),
        });
    };
    if counter.key != key {
        // The descriptor by which the limit was set has another pattern or network now.
        return None;
    }
    let own = counter.rule.options().own.as_ref();
    let window = counter.stored_window();
    let within = own.and_then(|own| own.terms(&own.cut(&record.numbers)?, window.as_deref()).ok());
    let terms = within.unwrap_or_else(|| OwnTerms {
        limit: counter.limit.clone(),
        requests_per_unit: match counter.displayed_limit.requests_per_unit {
            OwnTerms::UNLIMITED => OwnTerms::UNLIMITED,
            requests => OwnTerms::displayed(requests, 0),
        },
    });
    let was_unused = record.unused_since.is_some();
    let bytes = if was_unused { record.with_unused_since(None).bytes() } else { bytes };
    let is_other = was_unused || terms != decides;
    is_other.then(|| (Renewal::Renewed, Some(with(Some(terms), bytes))))
}

/// What becomes at `now` of a limit whose rule has another algorithm or window or is gone, and the record that says since when.
fn unused(record: &OwnLimitRecord, now: Timestamp) -> (Renewal, Option<OwnLimitRecord>) {
    let now = millis(now);
    match record.unused_since {
        None => (Renewal::Noted, Some(record.clone().with_unused_since(Some(now)))),
        Some(since) if now.saturating_sub(since) < UNUSED_MAX.as_millis() as u64 => (Renewal::Unused, None),
        Some(_) => (Renewal::Dropped, None),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A record without an instant since which it is unused.
    fn record() -> OwnLimitRecord {
        serde_json::from_str(r#"{"domain": "d", "entries": [], "numbers": {}, "set_at": 5}"#).unwrap()
    }

    proptest! {
        #[test]
        fn unused_limit_is_dropped_exactly_after_a_day(
            begin in 0_u64..1 << 50,
            pauses in prop::collection::vec(1_u64..30_000_000, 1..40),
        ) {
            let mut now = Timestamp::from_nanos(begin);
            let (renewal, noted) = unused(&record(), now);
            prop_assert_eq!(renewal, Renewal::Noted);
            let noted = noted.unwrap();
            let read: OwnLimitRecord = serde_json::from_slice(&noted.bytes()).unwrap();
            prop_assert_eq!(read.unused_since, noted.unused_since);
            let until = noted.unused_since.unwrap() + UNUSED_MAX.as_millis() as u64;
            for pause in pauses {
                now = now.after(Duration::from_millis(pause));
                let (renewal, changed) = unused(&noted, now);
                let expected = if millis(now) < until { Renewal::Unused } else { Renewal::Dropped };
                prop_assert_eq!((renewal, changed.is_some()), (expected, false));
            }
        }
    }
}
