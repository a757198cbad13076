//! The body of refusals: a problem by RFC 9457, or what the operator has written.

use std::{collections::HashSet, time::Duration};

use tollgate_limiter::limiter::{Answer, Modes, Status};
use tollgate_rules::{DenialBody, DenialTemplate, DenialValues, KeyedRules};

/// The title of a refusal by a limit.
const QUOTA_EXCEEDED: &str = "Request cannot be satisfied as assigned quota has been exceeded";
/// The title of a refusal that was decided without the owner of the counter.
const REDUCED_CAPACITY: &str = "Request cannot be satisfied due to temporary server capacity constraints";

/// The bodies of refusals by rules that do not set one, and the types of problems.
#[derive(Clone, Debug)]
pub struct DenialBodySettings {
    /// The body; `None` for none.
    pub body: Option<DefaultBody>,
    /// The URI of the problem that a limit is exceeded.
    pub problem_type: String,
    /// The URI of the problem that a limit is exceeded by a decision made without the owner of the counter.
    pub degraded_problem_type: String,
}

impl Default for DenialBodySettings {
    fn default() -> Self {
        let problem_type = |name| format!("https://iana.org/assignments/http-problem-types#{name}");
        Self {
            body: None,
            problem_type: problem_type("quota-exceeded"),
            degraded_problem_type: problem_type("temporary-reduced-capacity"),
        }
    }
}

/// The body of refusals by rules that do not set one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultBody {
    /// `application/problem+json`.
    Problem,
}

/// A body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Body<'b> {
    pub(super) content_type: &'b str,
    pub(super) text: String,
}

/// When a refused request passes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct When<'a> {
    pub(super) retry_after: Option<Duration>,
    /// Why the request never passes.
    pub(super) never_because: Option<&'a str>,
}

/// Makes the bodies of refusals.
#[derive(Clone, Debug)]
pub struct DenialBodies {
    default: DenialBody,
    quota_exceeded: DenialTemplate,
    reduced_capacity: DenialTemplate,
}

impl Default for DenialBodies {
    fn default() -> Self {
        Self::new(&DenialBodySettings::default())
    }
}

impl DenialBodies {
    /// Bodies as they are set.
    pub fn new(settings: &DenialBodySettings) -> Self {
        let default = match settings.body {
            None => DenialBody::Off,
            Some(DefaultBody::Problem) => DenialBody::Problem,
        };
        Self {
            default,
            quota_exceeded: DenialTemplate::problem(&settings.problem_type, QUOTA_EXCEEDED),
            reduced_capacity: DenialTemplate::problem(&settings.degraded_problem_type, REDUCED_CAPACITY),
        }
    }

    /// The body of a reply, which says when to retry; `None` if the request passes, if no body is
    /// set, or if it is too large.
    #[inline]
    pub(super) fn body_of<'b, 'a: 'b>(
        &'b self,
        domain: &str,
        rules: &'b KeyedRules,
        answer: &Answer<'a>,
        modes: Modes,
        when: When<'_>,
    ) -> Option<Body<'b>> {
        if answer.passes { None } else { self.refusal_body(domain, rules, answer, modes, when) }
    }

    #[inline(never)]
    fn refusal_body<'b, 'a: 'b>(
        &'b self,
        domain: &str,
        rules: &'b KeyedRules,
        answer: &Answer<'a>,
        modes: Modes,
        when: When<'_>,
    ) -> Option<Body<'b>> {
        let refusing = || answer.statuses.iter().filter(|status| !status.passes);
        let decisive = decisive_of(refusing(), modes)?;
        let set = match decisive.rule {
            Some(rule) => rule.denial_body.as_deref(),
            None => rules.rules()?.domain(domain)?.denial_body.as_deref(),
        };
        let template = match set.unwrap_or(&self.default) {
            DenialBody::Off => return None,
            DenialBody::Problem if decisive.degraded => &self.reduced_capacity,
            DenialBody::Problem => &self.quota_exceeded,
            DenialBody::Template(template) => template,
        };
        let shown = || refusing().filter(|status| !status.is_hidden());
        let mut seen = HashSet::new();
        let violated_policies: Vec<_> = shown().map(Status::name).filter(|name| seen.insert(*name)).collect();
        let decisive = decisive_of(shown(), modes);
        let limit = decisive.and_then(|status| status.limit);
        let values = DenialValues {
            domain,
            rule: decisive.map(Status::name),
            limit: limit.map(|limit| limit.requests_per_unit),
            unit: limit.and_then(|limit| limit.unit),
            remaining: decisive.map(|status| status.remaining),
            retry_after: when.retry_after,
            never_because: when.never_because,
            violated_policies: &violated_policies,
        };
        Some(Body { content_type: template.content_type(), text: template.render(&values)? })
    }
}

/// The refusal that decides: that with the longest wait, or if only quotas refuse, that with the shortest one. The
/// first one wins a tie.
fn decisive_of<'a, 's: 'a>(
    refusing: impl Iterator<Item = &'a Status<'s>>,
    modes: Modes,
) -> Option<&'a Status<'s>> {
    let wait = |status: &Status<'_>| status.retry_after.unwrap_or(Duration::MAX);
    refusing.reduce(|best, next| {
        let is_decisive = match (best.refuses_alone(modes), next.refuses_alone(modes)) {
            (true, true) => wait(next) > wait(best),
            (true, false) => false,
            (false, true) => true,
            (false, false) => wait(next) < wait(best),
        };
        if is_decisive { next } else { best }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_counter::descriptor::Secret;
    use tollgate_rules::Rules;

    use super::*;

    #[test]
    fn refusal_without_owner_is_a_problem_of_capacity() {
        let settings =
            DenialBodySettings { body: Some(DefaultBody::Problem), ..DenialBodySettings::default() };
        let bodies = DenialBodies::new(&settings);
        let rules = Rules::parse("f", "domain: d\n").unwrap();
        let rules = KeyedRules::new(Some(Arc::new(rules)), Secret::from_bytes([7; 16]));
        let status = Status { passes: false, ..Status::WITHOUT_LIMIT };
        for (degraded, kind, title) in [
            (false, &settings.problem_type, QUOTA_EXCEEDED),
            (true, &settings.degraded_problem_type, REDUCED_CAPACITY),
        ] {
            let statuses = [Status { degraded, ..status }].into_iter().collect();
            let answer = Answer { passes: false, passes_in_shadow: false, delay: Duration::ZERO, statuses };
            let body = bodies.body_of("d", &rules, &answer, Modes::default(), When::default()).unwrap();
            let json: serde_json::Value = serde_json::from_str(&body.text).unwrap();
            let expected =
                serde_json::json!({"type": kind, "title": title, "violated-policies": ["override"]});
            assert_eq!((body.content_type, json), ("application/problem+json", expected));
        }
    }
}
