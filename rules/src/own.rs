//! Limits of their own: the numbers that a key may have in place of those of its rule.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Serialize};
use tollgate_counter::algorithm::OwnTerms;

use crate::Unit;

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

/// Makes the terms of a rule with these numbers, and this unit, in place of its own. An error says why it cannot have
/// them.
pub(crate) type CompileOwn =
    dyn Fn(&[(&'static str, u64)], Option<Unit>) -> Result<OwnTerms, String> + Send + Sync;

/// What keys of a rule may have of their own.
#[derive(Clone)]
pub struct OwnBounds {
    bounds: Vec<(&'static str, u64)>,
    unlimited: bool,
    // The numbers that the rule gives.
    given: Vec<&'static str>,
    // The nanoseconds of the period of the rule, if a key may have another one.
    free_period: Option<u64>,
    compile: Arc<CompileOwn>,
}

/// The bounds alone: the rest is in the limit of the rule.
impl PartialEq for OwnBounds {
    fn eq(&self, other: &Self) -> bool {
        (&self.bounds, self.unlimited) == (&other.bounds, other.unlimited)
    }
}

/// As in a rule file.
impl fmt::Display for OwnBounds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bounds = self.bounds.iter().map(|(name, max)| format!("{name}: {{max: {max}}}"));
        let unlimited = self.unlimited.then(|| "unlimited: true".to_owned());
        write!(formatter, "{{{}}}", bounds.chain(unlimited).collect::<Vec<_>>().join(", "))
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
    /// The bounds of a rule that gives these numbers.
    pub(crate) fn new(
        bounds: Vec<(&'static str, u64)>,
        unlimited: bool,
        given: Vec<&'static str>,
        free_period: Option<u64>,
        compile: Arc<CompileOwn>,
    ) -> Self {
        Self { bounds, unlimited, given, free_period, compile }
    }

    /// The largest number of each.
    pub(crate) fn largest(&self) -> &[(&'static str, u64)] {
        &self.bounds
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

    /// Why the key cannot have this unit.
    fn unit_problem(&self, numbers: &OwnNumbers) -> Option<&'static str> {
        numbers.unit?;
        match (self.free_period, numbers.requests_per_unit) {
            (None, _) => Some("`unit` is that of the rule, because the counter depends on it"),
            (Some(_), None) => Some("`unit` needs `requests_per_unit`"),
            (Some(_), Some(_)) => None,
        }
    }

    /// What decides on a key with these numbers.
    ///
    /// # Errors
    ///
    /// Why the key cannot have them.
    pub fn terms(&self, numbers: &OwnNumbers) -> Result<OwnTerms, String> {
        if numbers.unlimited {
            return self.unlimited_terms(numbers);
        }
        if numbers.given().next().is_none() {
            return Err("no number is given; to remove the limit of its own, clear it".to_owned());
        }
        if let Some(why) = self.unit_problem(numbers) {
            return Err(why.to_owned());
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
        (self.compile)(&numbers.given().collect::<Vec<_>>(), numbers.unit)
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

    fn unlimited_terms(&self, numbers: &OwnNumbers) -> Result<OwnTerms, String> {
        if !self.unlimited {
            return Err("the `own` of the rule does not allow `unlimited`".to_owned());
        }
        if let Some((name, _)) = numbers.given().next() {
            return Err(format!("`{name}` has no meaning with `unlimited`"));
        }
        if numbers.unit.is_some() {
            return Err("`unit` has no meaning with `unlimited`".to_owned());
        }
        let largest = |name: &'static str| match name {
            "max_in_flight" => (name, UNLIMITED_PLACES),
            _ => (name, UNLIMITED_NUMBER),
        };
        let given = self.given.iter().filter(|name| **name != "overdraft_limit");
        let terms = (self.compile)(&given.map(|name| largest(name)).collect::<Vec<_>>(), None)?;
        Ok(OwnTerms { requests_per_unit: OwnTerms::UNLIMITED, ..terms })
    }
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
        Rules,
        keys::{self, KEYS, KeySection},
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
        let numbers: Vec<_> = OwnNumbers::NAMES.into_iter().chain(["unlimited"]).collect();
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
        let terms = own.terms(&numbers).unwrap();
        assert_eq!(
            terms,
            OwnTerms { limit: rule("requests_per_unit: 500, burst: 2000"), requests_per_unit: 500 }
        );
        let numbers = OwnNumbers { burst: Some(7), ..OwnNumbers::default() };
        assert_eq!(own.terms(&numbers).unwrap().limit, rule("requests_per_unit: 100, burst: 7"));
        let banned = OwnNumbers { requests_per_unit: Some(0), ..OwnNumbers::default() };
        assert_eq!(own.terms(&banned).unwrap().limit.allowance(), 0);
        let unlimited = OwnNumbers { unlimited: true, ..OwnNumbers::default() };
        assert!(own.terms(&unlimited).unwrap().is_unlimited());
    }

    #[test]
    fn numbers_beyond_the_bounds_are_refused_with_their_reason() {
        let own = bounds("{unit: minute, requests_per_unit: 100, own: {requests_per_unit: {max: 1000}}}");
        let error = |numbers| own.terms(&numbers).unwrap_err();
        let number = |number| OwnNumbers { requests_per_unit: Some(number), ..OwnNumbers::default() };
        assert!(own.terms(&number(1_000)).is_ok());
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
            let terms = own.terms(&in_unit(max, unit)).unwrap();
            let text = format!(
                "{{algorithm: token_bucket, unit: {}, requests_per_unit: {max}, burst: 9}}",
                unit.name()
            );
            assert_eq!(Some(&terms.limit), rules(&text).unwrap().domains[0].rules[0].limit());
            assert_eq!(OwnTerms::requests_and_unit(terms.requests_per_unit), (max, unit.code()));
            assert!(own.terms(&in_unit(max + 1, unit)).is_err());
            assert_eq!(own.cut(&in_unit(max + 1, unit)), Some(in_unit(max, unit)));
        }
        let alone = OwnNumbers { unit: Some(Unit::Day), ..OwnNumbers::default() };
        let with =
            |numbers: OwnNumbers| own.terms(&OwnNumbers { unit: Some(Unit::Day), ..numbers }).unwrap_err();
        assert!(own.terms(&alone).unwrap_err().contains("no number is given"));
        assert!(
            with(OwnNumbers { unlimited: true, ..alone.clone() }).contains("no meaning with `unlimited`")
        );
        assert!(with(OwnNumbers { burst: Some(1), ..alone }).contains("needs `requests_per_unit`"));
        for windows in ["fixed_window", "sliding_window", "sliding_log"] {
            let own = bounds(&format!(
                "{{algorithm: {windows}, unit: minute, requests_per_unit: 5, own: {{requests_per_unit: {{max: 30}}}}}}"
            ));
            assert!(own.terms(&in_unit(1, Unit::Minute)).unwrap_err().contains("that of the rule"));
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
}
