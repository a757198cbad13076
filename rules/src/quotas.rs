//! The key `quotas`: how a limit is divided over the buckets of the rate limit quota service.

use std::num::NonZeroU32;

use tollgate_counter::algorithm::{Limit, QuotaTerms};

use crate::{
    diagnostics::Diagnostics,
    key_values::KeyValues,
    pattern::Pattern,
    prefix_tree::composite,
    rule::Quota,
    yaml::{Located, quote},
};

/// The most items of `quotas` of a rule.
pub(crate) const QUOTAS_MAX: usize = 256;
/// The greatest weight.
const WEIGHT_MAX: u64 = 1_000;
/// The greatest floor: what Envoy takes.
const FLOOR_MAX: u64 = u32::MAX as u64;

/// The items of `quotas`, without those whose problems were reported.
pub(crate) fn read(
    items: impl Iterator<Item = KeyValues>,
    diagnostics: &Diagnostics<'_>,
) -> Vec<Located<Quota>> {
    let mut quotas: Vec<Located<Quota>> = Vec::new();
    for keys in items {
        let Some(quota) = quota(&keys, diagnostics) else { continue };
        let is_same =
            |before: &&Located<Quota>| before.value.key == quota.key && before.value.value == quota.value;
        if let Some(before) = quotas.iter().find(is_same) {
            let before = diagnostics.location(before.mark);
            let what = format!("an item of `quotas` for {} is already given at {before}", pair(&quota));
            diagnostics.add(keys.mark, what);
        }
        quotas.push(Located { value: quota, mark: keys.mark });
    }
    quotas
}

fn quota(keys: &KeyValues, diagnostics: &Diagnostics<'_>) -> Option<Quota> {
    let key = keys.required("key", "the key of a pair of a bucket", diagnostics);
    let value = keys.required("value", "the value of a pair of a bucket", diagnostics);
    let number = |name: &str, max: u64| {
        if keys.given(name).is_none() {
            return Some(None);
        }
        let number = keys.integer(name)?;
        let fits = (1..=max).contains(&number.value);
        if !fits {
            diagnostics.add(number.mark, format!("`{name}` is from 1 to {max}, not {}", number.value));
        }
        fits.then_some(Some(number.value))
    };
    let weight = number("weight", WEIGHT_MAX);
    let floor = number("floor", FLOOR_MAX);
    let key = key?;
    let value = value?;
    let weight = weight?;
    let floor = floor?;
    if (weight, floor) == (None, None) {
        diagnostics.add(keys.mark, "an item of `quotas` needs a `weight` or a `floor`");
        return None;
    }
    let default = QuotaTerms::default();
    let weight = weight.and_then(|weight| NonZeroU32::new(u32::try_from(weight).ok()?));
    let terms =
        QuotaTerms { weight: weight.unwrap_or(default.weight), floor: floor.unwrap_or(default.floor) };
    Some(Quota { key, value, terms })
}

/// Reports items whose pair all buckets of a counter have, or none of them. `shared` are the descriptors whose values
/// share a counter.
pub(crate) fn check_pairs(quotas: &[Located<Quota>], shared: &[Pattern], diagnostics: &Diagnostics<'_>) {
    let is_shared = |quota: &Quota| {
        let text = composite(&quota.key, &quota.value);
        shared.iter().any(|pattern| pattern.matches(text.as_bytes()))
    };
    for Located { value: quota, mark } in quotas.iter().filter(|quota| !is_shared(&quota.value)) {
        let what = format!(
            "`quotas` names {}, which matches no descriptor of the rule with a `*` and `share_threshold: true`; \
             without it, buckets with this value have a counter of their own",
            pair(quota)
        );
        diagnostics.add(*mark, what);
    }
}

/// Warns of floors above the limit. No error: the limit may be changed elsewhere.
pub(crate) fn check_floors(quotas: &[Located<Quota>], limit: &Limit, warnings: &Diagnostics<'_>) {
    let (most, unit) =
        limit.hit_rate().map_or((limit.allowance(), ""), |rate| (rate.per_second, " a second"));
    for Located { value: quota, mark } in quotas.iter().filter(|quota| quota.value.terms.floor > most) {
        let floor = quota.terms.floor;
        let what = format!("the `floor` of {} is {floor}, above the limit of {most}{unit}", pair(quota));
        warnings.add(*mark, what);
    }
}

fn pair(quota: &Quota) -> String {
    quote(&format!("{}: {}", quota.key, quota.value))
}
