//! What keys of a rule may have of their own.

use std::sync::Arc;

use tollgate_counter::algorithm::Limit;

use crate::{
    diagnostics::{Diagnostics, Problems, RuleOrigin},
    key_values::{KeyValues, LimitDraft},
    limit,
    own::{OwnBounds, OwnNumbers, StoredTerms},
    rule::Allowance,
};

/// The bounds of the numbers that keys of a rule may have, whose limit is `limit`. Problems are reported.
pub(crate) fn own_bounds(draft: LimitDraft<'_>, limit: &Limit) -> Option<OwnBounds> {
    let own = draft.mapping("own")?;
    let max = |name| Some((name, own.mapping(name)?.integer("max")?));
    let bounds: Vec<_> = OwnNumbers::NAMES.into_iter().filter_map(max).collect();
    let without_own = draft.without(&["own", "quotas", "candidate"]);
    for (name, max) in &bounds {
        let may_be_added = || {
            let with = compile(&without_own, &[(name, 1)], None);
            *name == "burst" && with.is_ok_and(|with| with.limit.kind() == limit.kind())
        };
        if draft.given(name).is_none() && !may_be_added() {
            let what = format!("`{name}` is no number of this limit, so a key cannot have its own");
            draft.report(max.mark, what);
            return None;
        }
    }
    let given = OwnNumbers::NAMES.into_iter().filter(|name| draft.given(name).is_some()).collect();
    let bounds: Vec<_> = bounds.into_iter().map(|(name, max)| (name, max.value)).collect();
    if let Err(why) = compile(&without_own, &bounds, None) {
        draft.report(own.mark, format!("the largest numbers of a key do not fit the rule: {why}"));
        return None;
    }
    let found = OwnBounds {
        bounds,
        unlimited: own.is_set("unlimited"),
        given,
        free_period: limit.free_period_nanos(),
        is_from_source: false,
        fingerprint: 0,
        compile: Arc::new(move |numbers: &[_], window: Option<&str>| compile(&without_own, numbers, window)),
    };
    Some(if own.given("from").is_some() { found.with_source(limit) } else { found })
}

/// The terms of a rule with other numbers.
fn compile(
    draft: &KeyValues,
    numbers: &[(&'static str, u64)],
    window: Option<&str>,
) -> Result<StoredTerms, String> {
    let mut draft = draft.clone();
    if let Some(window) = window {
        draft.set_window(window);
    }
    numbers.iter().for_each(|(name, number)| draft.set(name, *number));
    let mut problems = Problems::default();
    let origin = RuleOrigin::File("own".to_owned().into());
    let diagnostics = &Diagnostics::new(origin.into(), &mut problems);
    let terms = limit::terms(LimitDraft { keys: &draft, diagnostics });
    match terms {
        Some(terms) if problems.is_empty() => match terms.allowance {
            Allowance::Limited(limit) => Ok(StoredTerms { limit, displayed_limit: terms.displayed_limit }),
            Allowance::Unlimited => Err("the rule is unlimited".to_owned()),
        },
        _ => Err(problems.iter().next().map_or_else(String::new, |problem| problem.what.clone())),
    }
}
