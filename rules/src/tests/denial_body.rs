//! The bodies of refusals that rule files set.

use std::time::Duration;

use proptest::{collection::vec, prelude::*};
use serde_json::{Map, Value as Json, json};

use super::{problems, rules, sources};
use crate::{
    Unit, Variable,
    compile::{self, compile_all},
    contents::Contents,
    denial_body::{
        template::{DenialBody, DenialTemplate},
        text::DenialValues,
    },
    diagnostics::Problems,
    overlay::Overlay,
    rule_set::Rules,
};

/// A file with one rule and this body of the domain and of the rule, which are on lines 2 and 5.
fn file(of_domain: &str, of_rule: &str) -> String {
    format!(
        "domain: d\ndenial_body: {of_domain}\ndescriptors:\n- {{key: a, rate_limit: {{unit: day, requests_per_unit: 1,\n\
         denial_body: {of_rule}}}}}\n"
    )
}

fn body_of(rules: &Rules) -> Option<String> {
    rules.domain("d").unwrap().rules().next().unwrap().denial_body.as_ref().map(ToString::to_string)
}

fn template(body: &str) -> DenialTemplate {
    let rules = rules(&file(body, "~"));
    match rules.domain("d").unwrap().denial_body.as_deref() {
        Some(DenialBody::Template(template)) => template.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn rule_has_its_own_body_or_that_of_its_domain() {
    for (of_domain, of_rule, expected) in [
        ("~", "~", None),
        ("problem", "~", Some("problem")),
        ("problem", "off", Some("off")),
        ("{text: Slow down.}", "~", Some("text/plain; charset=utf-8: Slow down.")),
        ("off", "{json: [1, '{limit}']}", Some("application/json: [1,\"{limit}\"]")),
    ] {
        let rules = rules(&file(of_domain, of_rule));
        assert_eq!(body_of(&rules).as_deref(), expected);
        assert_eq!(rules.domain("d").unwrap().denial_body.is_some(), of_domain != "~");
    }
    let unlimited =
        "domain: d\ndenial_body: problem\ndescriptors: [{key: a, rate_limit: {unlimited: true}}]\n";
    assert_eq!(body_of(&rules(unlimited)), None);
}

#[test]
fn template_renders_text_markup_and_json() {
    let values = DenialValues {
        domain: "d",
        rule: Some("<a>\n"),
        limit: Some(5),
        unit: Some(Unit::Minute),
        remaining: Some(2),
        retry_after: Some(Duration::from_millis(1_500)),
        never_because: None,
        violated_policies: &["<a>\n", "b"],
    };
    for (body, content_type, expected) in [
        ("{text: '{limit} per {unit}, {rule}'}", "text/plain; charset=utf-8", r"5 per minute, <a>\n"),
        ("{text: '<i>{rule}</i>', content_type: text/html}", "text/html", r"<i>&#60;a&#62;\n</i>"),
        (
            "{json: {error: 'Wait {retry_after} s', ms: '{retry_after_ms}', rule: '{rule}', of: '{violated_policies}', \
             n: 1.5, '{limit}': ~}}",
            "application/json",
            r#"{"error":"Wait 2 s","ms":1500,"rule":"<a>\n","of":["<a>\n","b"],"n":1.5,"{limit}":null}"#,
        ),
        ("{json: '{limit}', content_type: application/vnd.shop+json}", "application/vnd.shop+json", "5"),
    ] {
        let template = template(body);
        assert_eq!((template.content_type(), &*template.render(&values).unwrap()), (content_type, expected));
    }
}

#[test]
fn json_leaves_out_members_without_a_value() {
    let body = "{json: {after: '{retry_after}', list: ['{limit}'], text: 'In {retry_after} s'}}";
    let rendered = template(body).render(&DenialValues::default()).unwrap();
    assert_eq!(rendered, r#"{"list":[null],"text":"In  s"}"#);
}

#[test]
fn body_of_more_than_64_kib_is_none() {
    let name = "n".repeat(1 << 10);
    let names = vec![name.as_str(); 64];
    let rendered = |body, names: &[&str]| {
        let values = DenialValues { violated_policies: names, ..DenialValues::default() };
        template(body).render(&values).map(|body| body.len())
    };
    for body in [
        "{text: '{violated_policies}'}",
        "{json: ['{violated_policies}']}",
        "{json: 'of {violated_policies}'}",
    ] {
        assert!(rendered(body, &names[1..]).is_some_and(|length| length > 63 << 10), "{body}");
        assert_eq!(rendered(body, &names), None, "{body}");
    }
}

#[test]
fn wrong_bodies_are_refused_with_their_places() {
    for (body, expected) in [
        (
            "problems",
            "f:2:14: `denial_body` cannot be `problems`; it is one of `off`, `problem`; did you mean `problem`?",
        ),
        ("[1]", "f:2:14: `denial_body` takes text, not a list"),
        ("{}", "f:2:14: a body has either `text` or `json`"),
        ("{text: a, json: b}", "f:2:14: a body has either `text` or `json`"),
        (
            "{template: a}",
            "f:2:15: unknown key `template`; allowed in `denial_body` are `text`, `json`, `content_type`\n\
                           f:2:14: a body has either `text` or `json`",
        ),
        ("{text: [a]}", "f:2:21: `text` takes text, not a list"),
        (
            "{text: a, content_type: image/png}",
            "f:2:38: `content_type` cannot be `image/png`; that of `text` is `text/plain` or `text/html`",
        ),
        (
            "{json: a, content_type: text/plain}",
            "f:2:38: `content_type` cannot be `text/plain`; that of `json` is `application/json` or `application/NAME+json`",
        ),
        (
            "{text: a, content_type: \"text/plain;\\nx: y\"}",
            "f:2:38: `content_type` cannot be `text/plain;\\nx: y`; that of `text` is `text/plain` or `text/html`",
        ),
        ("{json: .inf}", "f:2:21: `.inf` is a number that JSON cannot hold; write it as text, in quotes"),
        ("{text: 'a } b'}", "f:2:21: a brace alone; write `{{` or `}}` for a brace itself"),
    ] {
        let mut lines: Vec<_> = expected.split('\n').map(str::trim).collect();
        lines.sort_unstable();
        let found = problems(&file(body, "~"));
        let mut found: Vec<_> = found.lines().collect();
        found.sort_unstable();
        assert_eq!(found, lines, "{body}");
    }
    let names = Variable::ALL.map(|variable| format!("`{}`", variable.name())).join(", ");
    assert_eq!(
        problems(&file("{json: {a: 'x {limt}', b: ['{retry_after}', '{user}'], c: {limit}}}", "~")),
        format!(
            "f:2:25: `{{limt}}` is no variable; did you mean `limit`?\n\
             f:2:58: `{{user}}` is no variable; there are {names}, and `{{{{` stands for a brace\n\
             f:2:72: `{{limit}}` without quotes is a mapping; write it in quotes"
        )
    );
    let large = format!("{{text: '{}'}}", "x".repeat(16_385));
    assert_eq!(
        problems(&file(&large, "~")),
        "f:2:14: a template of 16385 bytes is too large; at most 16384 are allowed"
    );
}

#[test]
fn candidates_and_unlimited_rules_have_no_body() {
    let text = file("~", "~, candidate: {unit: day, requests_per_unit: 2, denial_body: problem}");
    assert_eq!(
        problems(&text),
        "f:5:62: `denial_body` has no meaning in a `candidate`, which only limits; remove it"
    );
    let text = "domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: true, denial_body: off}}]\n";
    assert!(problems(text).contains("`denial_body` has no meaning with `unlimited: true`"));
}

#[test]
fn domain_has_one_body_in_all_its_documents() {
    let document = |body: &str| format!("domain: d\ndenial_body: {body}\n");
    let compiled = |bodies: [&str; 2]| {
        compile::compile(&sources([("a", &document(bodies[0])), ("b", &document(bodies[1]))]))
    };
    assert!(compiled(["{text: a}", "{text: a}"]).is_ok());
    assert_eq!(
        compiled(["{text: a}", "{text: b}"]).unwrap_err().to_string(),
        "b:2:1: `denial_body` of this domain has another value at a:2:1; set it once, or to the same value"
    );
}

#[test]
fn overlay_sets_bodies_of_domains_and_rules() {
    let tree = "domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: day, requests_per_unit: 1}}\n\
                - {key: b, rate_limit: {unit: day, requests_per_unit: 1}}\n";
    let overlay = "overlay:\n- domain: d\n  denial_body: problem\n  rules:\n  \
                   - {match: [b], rate_limit: {denial_body: {text: '{limit}'}}}\n";
    let overlay = Overlay::read("o", overlay.into()).unwrap();
    let contents = Contents { sources: sources([("f", tree)]), problems: Problems::default() };
    let rules = compile_all(&contents, Some(&overlay)).unwrap();
    let bodies =
        rules.domain("d").unwrap().rules().map(|rule| rule.denial_body.as_ref().unwrap().to_string());
    assert_eq!(bodies.collect::<Vec<_>>(), ["problem", "text/plain; charset=utf-8: {limit}"]);
}

/// Texts of templates: variables, braces, and what ends a text of JSON.
fn text() -> impl Strategy<Value = String> {
    let names = Variable::ALL.map(|variable| format!("{{{}}}", variable.name()));
    let piece = prop_oneof![
        4 => prop::sample::select(names.to_vec()),
        1 => Just("{{".to_owned()),
        1 => Just("}}".to_owned()),
        4 => r#"[a-z"\\/<>&{}\n\t\u{0}\u{7f}\u{2028}é🚦]{0,4}"#,
    ];
    vec(piece, 0..5).prop_map(|pieces| pieces.concat())
}

fn any_json() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        1 => Just(Json::Null),
        1 => any::<bool>().prop_map(Json::from),
        1 => any::<i64>().prop_map(Json::from),
        6 => text().prop_map(Json::from),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        let member = ("[a-z\"\\\\{}]{0,3}", inner.clone());
        prop_oneof![
            vec(inner, 0..4).prop_map(Json::from),
            vec(member, 0..4).prop_map(|members| Json::from(members.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn names() -> impl Strategy<Value = Vec<String>> {
    vec(prop_oneof![any::<String>(), "[\"\\\\<>&{}\n]{0,4}"], 2..5)
}

proptest! {
    #[test]
    fn json_template_renders_to_valid_json(
        json in any_json(), names in names(), numbers: Option<(u64, u64)>, wait: Option<Duration>,
    ) {
        // Of YAML, JSON is a part.
        let text = format!("domain: d\ndenial_body: {{json: {json}}}\n");
        let Ok(rules) = Rules::parse("f", &text) else { return Ok(()) };
        let body = rules.domain("d").unwrap().denial_body.clone();
        let Some(DenialBody::Template(template)) = body.as_deref() else { panic!("{body:?}") };
        let policies: Vec<_> = names.iter().map(String::as_str).collect();
        let values = DenialValues {
            domain: policies[0],
            rule: Some(policies[1]),
            limit: numbers.map(|numbers| numbers.0),
            unit: None,
            remaining: numbers.map(|numbers| numbers.1),
            retry_after: wait,
            never_because: wait.is_none().then_some(policies[0]),
            violated_policies: &policies,
        };
        let rendered: Json = serde_json::from_str(&template.render(&values).unwrap()).expect("valid JSON");
        if !json.to_string().contains(['{', '}']) {
            prop_assert_eq!(rendered, json);
        }
    }

    #[test]
    fn any_body_is_read_or_refused_with_its_place(text in text(), html: bool) {
        let content_type = if html { "text/html" } else { "text/plain" };
        let body = json!({"text": text, "content_type": content_type});
        match Rules::parse("f", &format!("domain: d\ndenial_body: {body}\n")) {
            Err(problems) => prop_assert!(problems.to_string().starts_with("f:2:"), "{problems}"),
            Ok(rules) => {
                let body = rules.domain("d").unwrap().denial_body.clone();
                let Some(DenialBody::Template(template)) = body.as_deref() else { panic!("{body:?}") };
                let values = DenialValues { rule: Some("<\"&'>"), ..DenialValues::default() };
                let rendered = template.render(&values).unwrap();
                prop_assert!(!html || !rendered.contains("<\"&'>"));
            }
        }
    }
}
