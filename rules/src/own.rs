//! Limits of their own: the numbers that a key may have in place of those of its rule.

use std::{fmt, hash::Hasher, sync::Arc};

use jiff::Timestamp as Instant;
use rustc_hash::FxHasher;
use serde::{Deserialize, Serialize};
use tollgate_counter::{
    algorithm::{Limit, OwnTerms},
    time::Timestamp,
};

use crate::{Unit, unit::DisplayedLimit};

/// The number that stands for each number of an unlimited key. Its counter counts, and refuses nothing.
const UNLIMITED_NUMBER: u64 = u32::MAX as u64;
/// The places of an unlimited key: as many as a rule may have.
const UNLIMITED_PLACES: u64 = 10_000;

/// The numbers of one key in place of those of its rule. A number that is absent is that of the rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnNumbers {
    /// Hits that pass in a unit or window; 0 lets nothing pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests_per_unit: Option<u64>,
    /// The unit of `requests_per_unit`, if it is not that of the rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<Unit>,
    /// What a bucket holds, or a queue lets wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst: Option<u64>,
    /// Tokens that are refilled at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refill_amount: Option<u64>,
    /// Calls in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_in_flight: Option<u64>,
    /// The largest debt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overdraft_limit: Option<u64>,
    /// Whether everything passes and is counted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unlimited: bool,
}

/// The limit of one key as a store names it, in JSON. What is absent is that of the rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredNumbers {
    requests_per_unit: Option<u64>,
    burst: Option<u64>,
    refill_amount: Option<u64>,
    max_in_flight: Option<u64>,
    overdraft_limit: Option<u64>,
    #[serde(default)]
    unlimited: bool,
    /// The window, as in a rule file.
    window: Option<String>,
    /// The instant from which the rule decides, as in RFC 3339.
    expires_at: Option<String>,
}

/// The limit of one key as a store names it, with the numbers of the rule where the store names none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredLimit {
    /// What decides.
    pub terms: StoredTerms,
    /// The instant from which the rule decides.
    pub expires_at: Option<Timestamp>,
}

/// What decides on a key for which a store names a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredTerms {
    /// The limit. Its window may be another than that of the rule.
    pub limit: Limit,
    /// The limit as displayed in responses; [`OwnTerms::UNLIMITED`] requests if it refuses nothing.
    pub displayed_limit: DisplayedLimit,
}

/// Makes the terms of a rule with other numbers, and with another window if it is given, as in a rule file. An error says
/// why it cannot have them.
pub(crate) type CompileOwn =
    dyn Fn(&[(&'static str, u64)], Option<&str>) -> Result<StoredTerms, String> + Send + Sync;

/// What keys of a rule may have of their own.
#[derive(Clone)]
pub struct OwnBounds {
    // The largest number of each.
    pub(crate) bounds: Vec<(&'static str, u64)>,
    pub(crate) unlimited: bool,
    // The numbers that the rule gives.
    pub(crate) given: Vec<&'static str>,
    // The nanoseconds of the period of the rule, if a key may have another one.
    pub(crate) free_period: Option<u64>,
    pub(crate) is_from_source: bool,
    // Of all that the limits of keys are made of besides their own numbers; 0 unless keys look up their limits.
    pub(crate) fingerprint: u16,
    pub(crate) compile: Arc<CompileOwn>,
}

/// Compares the bounds alone: the rest is in the limit of the rule.
impl PartialEq for OwnBounds {
    fn eq(&self, other: &Self) -> bool {
        (&self.bounds, self.unlimited, self.is_from_source)
            == (&other.bounds, other.unlimited, other.is_from_source)
    }
}

/// The bounds as `own` in a rule file.
impl fmt::Display for OwnBounds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from = self.is_from_source.then(|| "from: source".to_owned()).into_iter();
        let bounds = self.bounds.iter().map(|(name, max)| format!("{name}: {{max: {max}}}"));
        let unlimited = self.unlimited.then(|| "unlimited: true".to_owned());
        write!(formatter, "{{{}}}", from.chain(bounds).chain(unlimited).collect::<Vec<_>>().join(", "))
    }
}

impl OwnNumbers {
    /// The names of the numbers, as in rule files.
    pub(crate) const NAMES: [&str; 5] =
        ["requests_per_unit", "burst", "refill_amount", "max_in_flight", "overdraft_limit"];

    /// The numbers that are given, with their names.
    pub fn given(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Self { requests_per_unit, burst, refill_amount, max_in_flight, overdraft_limit, .. } = *self;
        let numbers = [requests_per_unit, burst, refill_amount, max_in_flight, overdraft_limit];
        Self::NAMES.into_iter().zip(numbers).filter_map(|(name, number)| Some((name, number?)))
    }
}

impl OwnBounds {
    /// The bounds of a rule with this limit whose keys look up their limits.
    pub(crate) fn with_source(self, limit: &Limit) -> Self {
        let mut hasher = FxHasher::default();
        hasher.write(format!("{limit:?} {self}").as_bytes());
        Self { is_from_source: true, fingerprint: (hasher.finish() >> 48) as u16, ..self }
    }

    /// A number that differs for other bounds, or for another limit of the rule, but for one in 65,536; 0 unless keys
    /// look up their limits.
    #[inline]
    pub fn fingerprint(&self) -> u16 {
        self.fingerprint
    }

    /// Whether keys look up their limits in a store.
    #[inline]
    pub fn is_from_source(&self) -> bool {
        self.is_from_source
    }

    /// The largest number of this name, in `unit` or in that of the rule.
    fn bound(&self, name: &str, unit: Option<Unit>) -> Option<u64> {
        let (_, max) = self.bounds.iter().find(|(bounded, _)| *bounded == name)?;
        let (Some(unit), Some(period), "requests_per_unit") = (unit, self.free_period, name) else {
            return Some(*max);
        };
        let in_unit = u128::from(*max) * u128::from(unit.span().nanos()) / u128::from(period.max(1));
        Some(u64::try_from(in_unit).unwrap_or(u64::MAX))
    }

    /// What decides on a key with these numbers, whose counter has the window of the rule unless another is named.
    ///
    /// # Errors
    ///
    /// Why the key cannot have them.
    pub fn terms(&self, numbers: &OwnNumbers, window: Option<&str>) -> Result<OwnTerms, String> {
        if numbers.unlimited && !self.unlimited {
            return Err("the `own` of the rule does not allow `unlimited`".to_owned());
        }
        if !numbers.unlimited && numbers.given().next().is_none() {
            return Err("no number is given; to remove the limit of its own, clear it".to_owned());
        }
        if numbers.unit.is_some() && !numbers.unlimited {
            if self.free_period.is_none() {
                return Err("`unit` is that of the rule, because the counter depends on it".to_owned());
            }
            if numbers.requests_per_unit.is_none() {
                return Err("`unit` needs `requests_per_unit`".to_owned());
            }
        }
        self.require_bounds(numbers)?;
        let StoredTerms { limit, displayed_limit } = self.compiled(numbers, window)?;
        let requests_per_unit = match displayed_limit.requests_per_unit {
            OwnTerms::UNLIMITED => OwnTerms::UNLIMITED,
            requests => OwnTerms::displayed(requests, numbers.unit.map_or(0, Unit::code)),
        };
        Ok(OwnTerms { limit, requests_per_unit })
    }

    /// Reads the limit of a key as a store names it. If the rule bounds no number, it may name any that fits the rule.
    ///
    /// # Errors
    ///
    /// Why it is no limit, or why the key cannot have it.
    pub fn stored(&self, json: &[u8]) -> Result<StoredLimit, String> {
        let stored: StoredNumbers = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        let StoredNumbers {
            requests_per_unit,
            burst,
            refill_amount,
            max_in_flight,
            overdraft_limit,
            unlimited,
            window,
            expires_at,
        } = stored;
        let numbers = OwnNumbers {
            requests_per_unit,
            unit: None,
            burst,
            refill_amount,
            max_in_flight,
            overdraft_limit,
            unlimited,
        };
        if numbers == OwnNumbers::default() && window.is_none() {
            return Err("it names no number".to_owned());
        }
        let is_bounded = !self.bounds.is_empty() || self.unlimited;
        if is_bounded && numbers.unlimited && !self.unlimited {
            return Err("the `own` of the rule does not allow `unlimited`".to_owned());
        }
        if is_bounded || numbers.unlimited {
            self.require_bounds(&numbers)?;
        }
        let expires_at = expires_at.map(|text| instant(&text)).transpose()?;
        Ok(StoredLimit { terms: self.compiled(&numbers, window.as_deref())?, expires_at })
    }

    fn require_bounds(&self, numbers: &OwnNumbers) -> Result<(), String> {
        if numbers.unlimited {
            let unit = numbers.unit.map(|_| "unit");
            return match numbers.given().map(|(name, _)| name).next().or(unit) {
                Some(name) => Err(format!("`{name}` has no meaning with `unlimited`")),
                None => Ok(()),
            };
        }
        for (name, number) in numbers.given() {
            match self.bound(name, numbers.unit) {
                None => return Err(format!("`{name}` is not in the `own` of the rule")),
                Some(max) if max < number => {
                    return Err(format!("`{name}` is {number}, and the `own` of the rule allows {max}"));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// The numbers within the bounds, as after a change of the rule; `None` if none of them is allowed any longer.
    pub fn cut(&self, numbers: &OwnNumbers) -> Option<OwnNumbers> {
        let unit = numbers.unit.filter(|_| self.free_period.is_some());
        let bound = |name: &str, number: Option<u64>| Some(number?.min(self.bound(name, unit)?));
        let cut = OwnNumbers {
            unit,
            requests_per_unit: bound("requests_per_unit", numbers.requests_per_unit),
            burst: bound("burst", numbers.burst),
            refill_amount: bound("refill_amount", numbers.refill_amount),
            max_in_flight: bound("max_in_flight", numbers.max_in_flight),
            overdraft_limit: bound("overdraft_limit", numbers.overdraft_limit),
            unlimited: numbers.unlimited && self.unlimited,
        };
        let unit = unit.filter(|_| cut.requests_per_unit.is_some());
        let cut = OwnNumbers { unit, ..cut };
        (cut != OwnNumbers::default()).then_some(cut)
    }

    /// What happens to keys with limits of their own if the bounds become those of `new`; `None` if all limits stay.
    pub fn narrowed(&self, new: Option<&Self>) -> Option<String> {
        let Some(new) = new else {
            return Some("all keys have the numbers of the rule until it has `own` again".to_owned());
        };
        let cut = self.bounds.iter().filter_map(|(name, max)| match new.bound(name, None) {
            None => Some(format!("`{name}` is that of the rule")),
            Some(least) if least < *max => Some(format!("a `{name}` above {least} is cut to {least}")),
            Some(_) => None,
        });
        let unlimited = self.unlimited && !new.unlimited;
        let unlimited = unlimited.then(|| "unlimited keys have the numbers of the rule".to_owned());
        let all: Vec<_> = cut.chain(unlimited).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// The terms of the rule with these numbers.
    fn compiled(&self, numbers: &OwnNumbers, window: Option<&str>) -> Result<StoredTerms, String> {
        let unit = numbers.unit.map(|unit| format!("{}s", unit.seconds()));
        let window = unit.as_deref().or(window);
        if !numbers.unlimited {
            return (self.compile)(&numbers.given().collect::<Vec<_>>(), window);
        }
        let largest = |name: &'static str| match name {
            "max_in_flight" => (name, UNLIMITED_PLACES),
            _ => (name, UNLIMITED_NUMBER),
        };
        let given = self.given.iter().filter(|name| **name != "overdraft_limit");
        let numbers: Vec<_> = given.map(|name| largest(name)).collect();
        let StoredTerms { limit, displayed_limit } = (self.compile)(&numbers, window)?;
        let displayed_limit = DisplayedLimit { requests_per_unit: OwnTerms::UNLIMITED, ..displayed_limit };
        Ok(StoredTerms { limit, displayed_limit })
    }
}

/// An instant as in RFC 3339.
fn instant(text: &str) -> Result<Timestamp, String> {
    let wrong =
        || format!("`expires_at` cannot be {text:?}; it is an instant such as `2027-01-31T12:00:00Z`");
    let instant: Instant = text.parse().map_err(|_| wrong())?;
    // An instant before 1970 has passed.
    Ok(Timestamp::from_nanos(u64::try_from(instant.as_nanosecond()).unwrap_or_default()))
}

impl fmt::Debug for OwnBounds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        keys::{self, KEYS, KeySection},
        rule_set::Rules,
    };

    fn rules(limit: &str) -> Result<Rules, String> {
        let text = format!("domain: d\ndescriptors:\n- key: user\n  rate_limit: {limit}\n");
        Rules::parse("rules.yaml", &text).map_err(|problems| problems.to_string())
    }

    fn bounds(limit: &str) -> OwnBounds {
        let rules = rules(limit).unwrap();
        OwnBounds::clone(rules.domains[0].rules[0].options().own.as_ref().unwrap())
    }

    fn problem(limit: &str) -> String {
        rules(limit).unwrap_err()
    }

    #[test]
    fn keys_of_own_are_the_numbers() {
        let names: Vec<_> =
            KEYS.iter().filter(|key| key.section == KeySection::Own).map(|key| key.name).collect();
        let numbers: Vec<_> = ["from"].into_iter().chain(OwnNumbers::NAMES).chain(["unlimited"]).collect();
        assert_eq!(names, numbers);
        assert!(keys::find("max", KeySection::OwnBound).is_some());
    }

    #[test]
    fn own_numbers_make_the_limit_of_a_rule_with_them() {
        let rule = |numbers: &str| {
            let text = format!("{{algorithm: token_bucket, unit: minute, overdraft: true, {numbers}}}");
            let rules = rules(&text).unwrap();
            rules.domains[0].rules[0].limit().unwrap().clone()
        };
        let own = bounds(
            "{algorithm: token_bucket, unit: minute, overdraft: true, requests_per_unit: 100, burst: 100, \
             own: {requests_per_unit: {max: 1000}, burst: {max: 2000}, unlimited: true}}",
        );
        let numbers =
            OwnNumbers { requests_per_unit: Some(500), burst: Some(2_000), ..OwnNumbers::default() };
        let terms = own.terms(&numbers, None).unwrap();
        assert_eq!(
            terms,
            OwnTerms { limit: rule("requests_per_unit: 500, burst: 2000"), requests_per_unit: 500 }
        );
        let numbers = OwnNumbers { burst: Some(7), ..OwnNumbers::default() };
        assert_eq!(own.terms(&numbers, None).unwrap().limit, rule("requests_per_unit: 100, burst: 7"));
        let banned = OwnNumbers { requests_per_unit: Some(0), ..OwnNumbers::default() };
        assert_eq!(own.terms(&banned, None).unwrap().limit.allowance(), 0);
        let unlimited = OwnNumbers { unlimited: true, ..OwnNumbers::default() };
        assert!(own.terms(&unlimited, None).unwrap().is_unlimited());
    }

    #[test]
    fn numbers_beyond_the_bounds_are_refused_with_their_reason() {
        let own = bounds("{unit: minute, requests_per_unit: 100, own: {requests_per_unit: {max: 1000}}}");
        let error = |numbers| own.terms(&numbers, None).unwrap_err();
        let number = |number| OwnNumbers { requests_per_unit: Some(number), ..OwnNumbers::default() };
        assert!(own.terms(&number(1_000), None).is_ok());
        assert_eq!(
            error(number(1_001)),
            "`requests_per_unit` is 1001, and the `own` of the rule allows 1000"
        );
        let burst = OwnNumbers { burst: Some(1), ..OwnNumbers::default() };
        assert_eq!(error(burst), "`burst` is not in the `own` of the rule");
        let unlimited = OwnNumbers { unlimited: true, ..OwnNumbers::default() };
        assert_eq!(error(unlimited), "the `own` of the rule does not allow `unlimited`");
        assert!(error(OwnNumbers::default()).contains("no number is given"));
        assert_eq!(own.cut(&number(5_000)), Some(number(1_000)));
        let burst = OwnNumbers { burst: Some(1), ..OwnNumbers::default() };
        assert_eq!(own.cut(&burst), None);
    }

    #[test]
    fn number_in_another_unit_is_bounded_as_a_rate() {
        let own = bounds(
            "{algorithm: token_bucket, window: 30s, requests_per_unit: 5, burst: 9, \
             own: {requests_per_unit: {max: 30}, unlimited: true}}",
        );
        let in_unit = |requests, unit| OwnNumbers {
            requests_per_unit: Some(requests),
            unit: Some(unit),
            ..OwnNumbers::default()
        };
        for (unit, max) in [(Unit::Second, 1), (Unit::Minute, 60), (Unit::Hour, 3_600)] {
            let terms = own.terms(&in_unit(max, unit), None).unwrap();
            let text = format!(
                "{{algorithm: token_bucket, unit: {}, requests_per_unit: {max}, burst: 9}}",
                unit.name()
            );
            assert_eq!(Some(&terms.limit), rules(&text).unwrap().domains[0].rules[0].limit());
            assert_eq!(OwnTerms::requests_and_unit(terms.requests_per_unit), (max, unit.code()));
            assert!(own.terms(&in_unit(max + 1, unit), None).is_err());
            assert_eq!(own.cut(&in_unit(max + 1, unit)), Some(in_unit(max, unit)));
        }
        let alone = OwnNumbers { unit: Some(Unit::Day), ..OwnNumbers::default() };
        let with = |numbers: OwnNumbers| {
            own.terms(&OwnNumbers { unit: Some(Unit::Day), ..numbers }, None).unwrap_err()
        };
        assert!(own.terms(&alone, None).unwrap_err().contains("no number is given"));
        assert!(
            with(OwnNumbers { unlimited: true, ..alone.clone() }).contains("no meaning with `unlimited`")
        );
        assert!(with(OwnNumbers { burst: Some(1), ..alone }).contains("needs `requests_per_unit`"));
        for windows in ["fixed_window", "sliding_window", "sliding_log"] {
            let own = bounds(&format!(
                "{{algorithm: {windows}, unit: minute, requests_per_unit: 5, own: {{requests_per_unit: {{max: 30}}}}}}"
            ));
            assert!(own.terms(&in_unit(1, Unit::Minute), None).unwrap_err().contains("that of the rule"));
        }
        assert_eq!(
            Unit::ALL.iter().map(|unit| Unit::from_code(unit.code())).collect::<Vec<_>>(),
            Unit::ALL.map(Some)
        );
    }

    #[test]
    fn own_that_does_not_fit_its_rule_is_a_problem() {
        for (limit, expected) in [
            ("{unit: minute, requests_per_unit: 1, own: {}}", "names no number"),
            ("{unit: minute, requests_per_unit: 1, from: source}", "it belongs in `own`"),
            ("{unit: minute, requests_per_unit: 1, fron: source}", "did you mean `from`?"),
            (
                "{unit: minute, requests_per_unit: 1, own: {burst: {max: 5}}}",
                "`burst` is no number of this limit",
            ),
            ("{unit: minute, requests_per_unit: 1, own: {requests_per_unit: 5}}", "expected a mapping"),
            ("{unit: minute, requests_per_unit: 1, own: {requests_per_unit: {}}}", "needs a `max`"),
            ("{unit: minute, requests_per_unit: 1, own: {requests_per_unit: {max: 0}}}", "at least 1"),
            ("{unlimited: true, own: {unlimited: true}}", "has no meaning with `unlimited: true`"),
            (
                "{algorithm: concurrency, max_in_flight: 5, own: {max_in_flight: {max: 20000}}}",
                "the largest numbers of a key do not fit the rule",
            ),
        ] {
            let problem = problem(limit);
            assert!(problem.contains(expected), "{limit}: {problem}");
            assert!(problem.contains("rules.yaml:4:"), "{problem}");
        }
    }

    const PER_MINUTE: &str =
        "{algorithm: fixed_window, unit: minute, requests_per_unit: 100, own: {from: source}}";

    #[test]
    fn stored_limit_is_the_rule_with_what_it_names() {
        let own = bounds(PER_MINUTE);
        assert!(own.is_from_source());
        let as_rule = |numbers: &str| {
            let rules = rules(&format!("{{algorithm: fixed_window, {numbers}}}")).unwrap();
            let rule = &rules.domains[0].rules[0];
            StoredTerms { limit: rule.limit().unwrap().clone(), displayed_limit: rule.displayed_limit }
        };
        for (json, rule) in [
            (r#"{"requests_per_unit": 7}"#, "unit: minute, requests_per_unit: 7"),
            (r#"{"window": "1s", "requests_per_unit": 5}"#, "unit: second, requests_per_unit: 5"),
            (r#"{"window": "90s", "requests_per_unit": 5}"#, "window: 90s, requests_per_unit: 5"),
            (r#"{"window": "1h"}"#, "unit: hour, requests_per_unit: 100"),
            (r#"{"requests_per_unit": 0, "unlimited": false}"#, "unit: minute, requests_per_unit: 0"),
        ] {
            let stored = own.stored(json.as_bytes()).unwrap();
            assert_eq!(stored, StoredLimit { terms: as_rule(rule), expires_at: None }, "{json}");
        }
        let unlimited = own.stored(br#"{"unlimited": true, "expires_at": "1970-01-01T00:00:02Z"}"#).unwrap();
        assert_eq!(unlimited.terms.displayed_limit.requests_per_unit, OwnTerms::UNLIMITED);
        assert_eq!(unlimited.expires_at, Some(Timestamp::from_nanos(2_000_000_000)));
    }

    #[test]
    fn stored_value_that_is_no_limit_is_refused_with_its_reason() {
        let own = bounds(PER_MINUTE);
        for (json, expected) in [
            ("", "EOF"),
            ("5", "invalid type"),
            ("{}", "names no number"),
            (r#"{"requests_per_unit": -1}"#, "invalid value"),
            (r#"{"requests_per_unit": 5, "limit": 7}"#, "unknown field `limit`"),
            (r#"{"requests_per_unit": 5, "burst": 7}"#, "`burst`"),
            (r#"{"max_in_flight": 5}"#, "`max_in_flight`"),
            (r#"{"window": "1", "requests_per_unit": 5}"#, "`window` cannot be"),
            (r#"{"requests_per_unit": 5, "expires_at": "tomorrow"}"#, "`expires_at` cannot be"),
            (r#"{"unlimited": true, "requests_per_unit": 5}"#, "no meaning with `unlimited`"),
        ] {
            let problem = own.stored(json.as_bytes()).unwrap_err();
            assert!(problem.contains(expected), "{json}: {problem}");
        }
    }

    #[test]
    fn stored_limit_stays_within_the_bounds_of_its_rule() {
        let own = bounds(
            "{unit: minute, requests_per_unit: 100, own: {from: source, requests_per_unit: {max: 1000}}}",
        );
        let problem = |json: &str| own.stored(json.as_bytes()).unwrap_err();
        assert!(own.stored(br#"{"requests_per_unit": 1000}"#).is_ok());
        assert!(problem(r#"{"requests_per_unit": 1001}"#).contains("allows 1000"));
        assert!(problem(r#"{"unlimited": true}"#).contains("does not allow `unlimited`"));
        // A classic rule has the windows of units.
        assert!(own.stored(br#"{"window": "1s", "requests_per_unit": 5}"#).is_ok());
        let only_numbers = bounds("{unit: minute, requests_per_unit: 1, own: {unlimited: true}}");
        assert!(!only_numbers.is_from_source());
        assert!(
            self::problem("{unit: minute, requests_per_unit: 1, own: {from: redis}}").contains("`source`")
        );
    }
}
