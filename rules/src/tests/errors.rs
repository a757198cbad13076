//! Problems of rule files, and how they are reported.

use proptest::prelude::*;

use super::{problems, rules};
use crate::{
    compile,
    contents::RuleInput,
    diagnostics::{Diagnostics, Problems, RuleOrigin},
    rule_set::Rules,
    yaml,
};

#[test]
fn suggestion_is_written_for_kept_problems_only() {
    let (mut written, more) = (0, 49_000);
    let mut kept = Problems::default();
    let diagnostics = Diagnostics::new(RuleOrigin::file("f"), &mut kept);
    for _ in 0..Problems::MAX + more {
        diagnostics.add_with(yaml::Mark::START, || {
            written += 1;
            "unknown key".to_owned()
        });
    }
    assert_eq!((written, kept.len()), (Problems::MAX, Problems::MAX + more));
    assert!(kept.to_string().ends_with(&format!("\nand {more} more")));
}

macro_rules! broken {
    ($($fact:ident: $file:literal => $expected:expr;)*) => {
        $(#[test]
        fn $fact() {
            let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/rules/", $file));
            assert_eq!(problems(text), $expected);
        })*
    };
}

broken! {
    file_that_is_not_yaml_is_refused: "no_yaml.yaml" =>
        "f:2:1: not YAML: invalid indentation in multiline quoted scalar";
    key_that_is_not_text_is_refused: "number_as_key.yaml" =>
        "f:3:5: a key must be text, but this is the number `0.25`; if it is meant as text, put it in quotes\n\
         f:3:5: `key` is missing; it is the key of a descriptor entry and must not be empty\n\
         f:4:5: `key` is missing; it is the key of a descriptor entry and must not be empty";
    misspelt_key_is_refused_with_nearest_known_key: "misspelt_keys.yaml" =>
        "f:4:5: unknown key `ratelimit`; did you mean `rate_limit`?\n\
         f:9:7: unknown key `requestsperunit`; did you mean `requests_per_unit`?";
    list_of_non_mappings_is_refused: "list_of_texts.yaml" =>
        "f:3:5: expected a mapping, not the text `a`\nf:4:5: expected a mapping, not the number `1`";
    missing_and_empty_domain_are_refused: "no_domain.yaml" =>
        "f:2:1: `domain` is missing; it is the name that requests ask under and must not be empty\n\
         f:6:9: `domain` is empty; it is the name that requests ask under and must not be empty";
    missing_and_empty_key_are_refused: "no_key.yaml" =>
        "f:3:5: `key` is missing; it is the key of a descriptor entry and must not be empty\n\
         f:4:10: `key` is empty; it is the key of a descriptor entry and must not be empty\n\
         f:6:7: `unit` cannot be `blink`; it is one of `second`, `minute`, `hour`, `day`, `week`, `month`, `year`";
    duplicate_composite_key_is_refused: "duplicate_descriptor.yaml" =>
        "f:5:5: `d.a_b` is already given at f:3:5; keys and values together must differ\n\
         f:6:5: `d.a_b` is already given at f:3:5; keys and values together must differ\n\
         f:10:9: `d.c.x` is already given at f:9:9; keys and values together must differ";
    unknown_or_missing_unit_is_refused: "bad_unit.yaml" =>
        "f:5:13: `unit` cannot be `foo`; it is one of `second`, `minute`, `hour`, `day`, `week`, `month`, `year`\n\
         f:9:13: `unit` cannot be `minutes`; it is one of `second`, `minute`, `hour`, `day`, `week`, `month`, `year`\
         ; did you mean `minute`?\n\
         f:12:17: `unit` is missing; it is one of `second`, `minute`, `hour`, `day`, `week`, `month`, `year`, \
         or give a `window`";
    unlimited_rule_with_unit_is_refused: "unlimited_with_unit.yaml" =>
        "f:6:7: `unit` has no meaning with `unlimited: true`; remove one of them";
    replaces_without_name_or_with_own_name_is_refused: "bad_replaces.yaml" =>
        "f:9:11: an item of `replaces` needs a `name`, that of the limit it replaces\n\
         f:10:11: an item of `replaces` needs a `name`, that of the limit it replaces\n\
         f:11:11: `replaces` names the limit itself; it takes the names of others\n\
         f:12:11: expected a mapping, not the text `text`";
    share_threshold_without_a_star_is_refused: "share_threshold.yaml" =>
        "f:5:22: `share_threshold` needs a `*` in `key` or `value`, or `match: cidr`, but this is `a_b`";
    metadata_that_is_not_a_mapping_of_texts_is_refused: "bad_metadata.yaml" =>
        "f:4:15: `metadata` takes a mapping, not the text `text`\n\
         f:7:7: a key must be text, but this is the number `1`; if it is meant as text, put it in quotes\n\
         f:8:10: `.nan` is a number that JSON cannot hold; write it as text, in quotes";
    misplaced_key_is_refused_with_its_section: "misplaced_keys.yaml" =>
        "f:2:1: `unit` does not belong at the root of the document; it belongs in `rate_limit`\n\
         f:5:5: `requests_per_unit` does not belong in a descriptor; it belongs in `rate_limit`\n\
         f:9:7: `shadow_mode` does not belong in `rate_limit`; it belongs in a descriptor\n\
         f:10:19: `unit` does not belong in an item of `replaces`; it belongs in `rate_limit`\n\
         f:11:5: `name` does not belong in a descriptor; it belongs in `rate_limit` or in an item of `replaces`";
    duplicate_key_in_mapping_is_refused: "duplicate_key.yaml" =>
        "f:2:1: `domain` is given twice, first in line 1; if another document begins here, write `---` before it\n\
         f:7:7: `unit` is given twice, first in line 6";
    value_of_wrong_type_is_refused: "wrong_types.yaml" =>
        "f:2:12: `on_denied` cannot be `charge_some`; it is one of `charge_all`, `charge_none`; did you mean `charge_none`?\n\
         f:4:10: `key` takes text, not a list\n\
         f:5:18: `shadow_mode` takes `true` or `false`, not the number `1`\n\
         f:6:17: `quota_mode` takes `true` or `false`, not the text `true` in quotes\n\
         f:7:18: `descriptors` takes a list, not a mapping\n\
         f:8:17: expected a mapping, not the number `5`";
    second_domain_in_a_document_is_refused_with_its_separator: "two_domains_in_one_document.yaml" =>
        "f:4:1: `domain` is given twice, first in line 1; if another document begins here, write `---` before it";
    list_of_limits_is_refused_with_its_problems: "list_of_limits.yaml" =>
        "f:5:7: `rate_limit` takes one limit, a mapping, not a list; nest each further limit below `descriptors` of \
         this descriptor, as in `{key: window, value: hour, rate_limit: {...}}`, and let the caller send a \
         descriptor with that entry too\n\
         f:6:16: `unit` cannot be `hourly`; it is one of `second`, `minute`, `hour`, `day`, `week`, `month`, \
         `year`; did you mean `hour`?";
    nested_limit_without_key_is_refused_with_its_place: "limit_without_key.yaml" =>
        "f:6:9: `key` is missing; the limit of `edge.api_key_trial` itself stands beside its `key`, not below its \
         `descriptors`";
    config_map_is_named_once_with_its_file: "kubernetes_config_map.yaml" =>
        "f:2:1: this is a ConfigMap of Kubernetes, whose rules are the text below `data`; take it out with \
         `yq -r '.data[\"config.yaml\"]' FILE > rules.yaml`, or mount the ConfigMap and give its directory\n\
         f:13:1: this is an object of Kubernetes of the kind `Deployment`, and not rules; a rule file has a `domain` \
         with `descriptors`, and a control plane that translates such objects sends its rules over xDS \
         (`rules.source: xds`)";
    list_of_kubernetes_is_named_with_its_command: "kubernetes_list.yaml" =>
        "f:2:1: this is a List of Kubernetes; the rules of its first ConfigMap are \
         `yq -r '.items[0].data[]' FILE > rules.yaml`";
    emissary_rate_limit_is_named_with_its_translation: "emissary_rate_limit.yaml" =>
        "f:2:1: this is a RateLimit of Emissary or Ambassador; here each label of a `pattern` is the `key` of a \
         descriptor, the next one nested in its `descriptors`, and its `value` unless that is `*`; `rate` is \
         `requests_per_unit` of the last one's `rate_limit`, and a `burstFactor` is `algorithm: token_bucket` with a \
         `burst` of rate times factor";
    gloo_rate_limit_config_is_named_with_its_command: "gloo_rate_limit_config.yaml" =>
        "f:2:1: this is a RateLimitConfig of Gloo, whose rules are below `spec.raw`; take them out with \
         `yq '{\"domain\": \"solo.io\"} + .spec.raw' FILE > rules.yaml` and check that file";
    limitador_limits_are_named_with_their_translation: "limitador_limits.yaml" =>
        "f:1:3: this is a list of limits of Limitador; here a `namespace` is a document with that `domain`, each of \
         the `variables` is the `key` of a descriptor (the next one nested in its `descriptors`), an equality of the \
         `conditions` a `key` with a `value`, and `rate_limit` has `requests_per_unit` for `max_value` and \
         `window: 60s` for `seconds: 60`";
    rules_of_first_ratelimit_are_named_with_their_command: "first_ratelimit.yaml" =>
        "f:2:1: this is the format of the first versions of ratelimit; write `descriptors` in place of each \
         `constraints`: `sed -i 's/constraints:/descriptors:/' FILE`";
    configuration_of_envoy_is_named: "envoy_configuration.yaml" =>
        "f:1:1: this is a configuration of Envoy, which `tollgate doctor --envoy FILE` examines; a rule file has a \
         `domain` with `descriptors`";
    all_keys_of_gloo_are_reported_at_once: "gloo_keys.yaml" =>
        "f:4:5: unknown key `weight`; a `weight` of Gloo selects the heaviest rules of a request; here each rule that \
         matches counts, so remove it, and name rules that are to be ignored in `replaces` of the limit\n\
         f:5:5: unknown key `alwaysApply`; here each rule that matches counts, as with `alwaysApply` of Gloo, so \
         remove it\n\
         f:6:5: unknown key `rateLimit`; did you mean `rate_limit`?\n\
         f:7:7: unknown key `requestsPerUnit`; did you mean `requests_per_unit`?\n\
         f:7:24: `requestsPerUnit` takes a whole number from 0 to 18446744073709551615, without quotes, not the text `ten`\n\
         f:8:13: `unit` cannot be `MIN`; it is one of `second`, `minute`, `hour`, `day`, `week`, `month`, `year`; \
         did you mean `minute`?\n\
         f:9:1: unknown key `setDescriptors`; sets of Gloo have no order; here entries are nested in the order in \
         which Envoy sends them: write a descriptor for the first entry, and the next one below its `descriptors`";
    keys_of_other_programs_are_refused_with_their_translation: "keys_of_others.yaml" =>
        "f:4:5: unknown key `value_regex`; values are not matched by regular expressions; write a `value` with `*`, \
         which matches any text, as in `user-*`, or let Envoy match and send a text (`header_value_match`)\n\
         f:5:5: unknown key `priority`; there are no priorities: an exact value wins over patterns, and of two \
         patterns the first in the file, so remove it and write the more specific pattern first\n\
         f:6:5: `algorithm` does not belong in a descriptor; it belongs in `rate_limit`\n\
         f:7:5: unknown key `entries`; each entry is a level of its own: the first one has `key` and `value`, the \
         next one stands below its `descriptors`\n\
         f:7:5: `key` is missing; it is the key of a descriptor entry and must not be empty\n\
         f:9:5: unknown key `rate_limits`; a descriptor has one limit, its `rate_limit`; nest each further limit below \
         `descriptors` of this descriptor, as in `{key: window, value: hour, rate_limit: {...}}`, and let the caller \
         send a descriptor with that entry too\n\
         f:10:1: unknown key `rate_limits`; these are the actions by which Envoy makes descriptors, and belong into its \
         routes; rules stand below `descriptors`, with the keys and values that these actions send";
}

#[test]
fn texts_that_match_nothing_are_warnings_with_their_places() {
    let rules = rules(include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/fixtures/rules/texts_that_match_nothing.yaml"
    )));
    let found: Vec<_> = rules.warnings().iter().map(ToString::to_string).collect();
    let expected = [
        "rules.yaml:1:1: `“edge”` has typographic quotes, which YAML does not read as quotes but as a part of the text; \
         write `edge`",
        "rules.yaml:4:12: `/café` looks like a path, which clients and Envoy send percent-encoded; write `/caf%C3%A9`",
        "rules.yaml:6:10: `us\\u{200b}er` has the invisible character U+200B, which requests hardly have; write `user`",
        "rules.yaml:8:24: `раypal` has U+0440, which only looks like `p`; write `paypal`",
        "rules.yaml:10:24: `Zu\u{308}rich` has an accent as a character of its own, and is not equal to the text that \
         looks the same, which most clients send; write `Zürich`",
        "rules.yaml:11:34: `2001:DB8::1` is not how Envoy sends this address, which is without a port and in its \
         shortest form; write `2001:db8::1`",
    ];
    assert_eq!(found, expected);
}

#[test]
fn empty_file_and_file_of_comments_are_refused() {
    for text in ["", "# nothing yet\n", "---\n...\n", "~\n"] {
        assert_eq!(
            problems(text),
            "f:1:1: the file holds no rules; a rule file has at least a `domain`",
            "{text:?}"
        );
    }
}

#[test]
fn all_problems_of_a_file_are_reported_together() {
    let text = "domain: d\nextra: 1\ndescriptors:\n  - value: x\n  - key: a\n    rate_limit: {unit: eon, requests_per_unit: -1}\n";
    assert_eq!(problems(text).lines().count(), 4);
}

#[test]
fn unresolved_alias_is_reported_once() {
    let text = "domain: d\ndescriptors:\n  - key: *a\n    value: *b\n    metadata: *c\n    rate_limit: *d\n    shadow_mode: *e\n    descriptors: *f\n";
    assert_eq!(problems(text).lines().count(), 6);
}

proptest! {
    #[test]
    fn compiler_does_not_panic_on_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = compile(&[RuleInput::file("f", bytes)]);
    }

    #[test]
    fn compiler_does_not_panic_on_any_mix_of_known_keys(
        lines in prop::collection::vec((0..crate::keys::KEYS.len(), 0usize..12, 0usize..5), 0..12),
    ) {
        const VALUES: [&str; 12] =
            ["", "1", "0", "a", "a*", "true", "day", "leaky_queue", "{timezone: UTC}", "[{key: a}]", "90s", "18446744073709551615"];
        let line = |(key, value, indent): &(usize, usize, usize)| {
            format!("{}{}: {}\n", "  ".repeat(*indent), crate::keys::KEYS[*key].name, VALUES[*value])
        };
        let text: String = lines.iter().map(line).collect();
        let _ = Rules::parse("f", &format!("domain: d\ndescriptors:\n  - key: a\n{text}"));
        let limit: String = lines.iter().map(|(key, value, _)| line(&(*key, *value, 3))).collect();
        let _ = Rules::parse("f", &format!("domain: d\ndescriptors:\n  - key: a\n    rate_limit:\n{limit}"));
    }
}
