//! The key `quotas`: how a limit is divided over the buckets of the rate limit quota service.

use std::{fmt, num::NonZeroU32};

use tollgate_counter::algorithm::{Limit, QuotaTerms};

use crate::{
    diagnostics::Diagnostics,
    keys::KeySection,
    pattern::Pattern,
    prefix_tree::composite,
    reader::MappingFields,
    yaml::{Located, quote},
};

/// The most items of `quotas` of a rule.
const QUOTAS_MAX: usize = 256;
/// The greatest weight.
const WEIGHT_MAX: u64 = 1_000;
/// The greatest floor: what Envoy takes.
const FLOOR_MAX: u64 = u32::MAX as u64;

/// The terms of the buckets with a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// The key of the pair.
    pub key: String,
    /// The value of the pair.
    pub value: String,
    /// What these buckets are entitled to.
    pub terms: QuotaTerms,
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, value, terms: QuotaTerms { weight, floor } } = self;
        write!(f, "{key}: {value} {{weight: {weight}, floor: {floor}}}")
    }
}

/// The items of `quotas`, without those whose problems were reported.
pub(crate) fn read(fields: &MappingFields<'_, '_>) -> Vec<Located<Quota>> {
    let diagnostics = fields.diagnostics;
    let items = fields.items("quotas");
    if let Some(beyond) = items.get(QUOTAS_MAX) {
        diagnostics.add(beyond.mark, format!("`quotas` has at most {QUOTAS_MAX} items"));
    }
    let mut quotas: Vec<Located<Quota>> = Vec::new();
    for item in items.iter().take(QUOTAS_MAX) {
        let Some(fields) = MappingFields::read(item, KeySection::Quota, diagnostics) else { continue };
        let Some(quota) = quota(&fields) else { continue };
        let is_same =
            |before: &&Located<Quota>| before.value.key == quota.key && before.value.value == quota.value;
        if let Some(before) = quotas.iter().find(is_same) {
            let before = diagnostics.location(before.mark);
            let what = format!("an item of `quotas` for {} is already given at {before}", pair(&quota));
            diagnostics.add(item.mark, what);
        }
        quotas.push(Located { value: quota, mark: item.mark });
    }
    quotas
}

fn quota(fields: &MappingFields<'_, '_>) -> Option<Quota> {
    let key = fields.required("key", "the key of a pair of a bucket");
    let value = fields.required("value", "the value of a pair of a bucket");
    let number = |name: &str, max: u64| {
        if fields.pair(name).is_none() {
            return Some(None);
        }
        let number = fields.integer(name)?;
        let fits = (1..=max).contains(&number.value);
        if !fits {
            fields.diagnostics.add(number.mark, format!("`{name}` is from 1 to {max}, not {}", number.value));
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
        fields.diagnostics.add(fields.mark, "an item of `quotas` needs a `weight` or a `floor`");
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
