//! Texts with variables, and the values of the variables.

use std::{fmt::Write as _, time::Duration};

use serde_json::Value as Json;
use tollgate_counter::{named, printable};

use crate::{Unit, keys, yaml::quote};

/// The maximum size of a body, in bytes: names of limits can be long.
const BODY_BYTES_MAX: usize = 64 << 10;

named! {
    /// A variable of templates, with the name that stands between braces.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Variable {
        /// The domain of the request.
        Domain = "domain",
        /// The name of the limit that refuses longest, or the path of its rule.
        Rule = "rule",
        /// The number of the limit that refuses longest.
        Limit = "limit",
        /// The unit of the limit that refuses longest.
        Unit = "unit",
        /// The hits that are left of the limit that refuses longest.
        Remaining = "remaining",
        /// Whole seconds after which the same request passes.
        RetryAfter = "retry_after",
        /// Milliseconds after which the same request passes.
        RetryAfterMs = "retry_after_ms",
        /// Why the same request never passes, with the largest amount that can.
        NeverBecause = "never_because",
        /// The names of all limits that refuse.
        ViolatedPolicies = "violated_policies",
    }
}

impl Variable {
    /// The variable with this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|variable| variable.name() == name)
    }
}

/// The values of a refusal that a template displays. A variable without a value is empty in a text, and left out of
/// JSON.
#[derive(Clone, Copy, Debug, Default)]
pub struct DenialValues<'v> {
    /// The domain of the request.
    pub domain: &'v str,
    /// The name of the limit that refuses longest, or the path of its rule.
    pub rule: Option<&'v str>,
    /// The number of the limit that refuses longest.
    pub limit: Option<u64>,
    /// The unit of the limit that refuses longest.
    pub unit: Option<Unit>,
    /// The hits that are left of the limit that refuses longest.
    pub remaining: Option<u64>,
    /// The time until the same request passes; `None` if it never would, or at an unknown time.
    pub retry_after: Option<Duration>,
    /// Why the same request never passes; `None` if it may pass later.
    pub never_because: Option<&'v str>,
    /// The names of all limits that refuse, each once.
    pub violated_policies: &'v [&'v str],
}

impl DenialValues<'_> {
    /// The value of a variable as JSON.
    pub(super) fn json(&self, variable: Variable) -> Option<Json> {
        match variable {
            Variable::Domain => Some(self.domain.into()),
            Variable::Rule => self.rule.map(Json::from),
            Variable::Limit => self.limit.map(Json::from),
            Variable::Unit => self.unit.map(|unit| unit.name().into()),
            Variable::Remaining => self.remaining.map(Json::from),
            Variable::RetryAfter => self.retry_after.map(|after| seconds(after).into()),
            Variable::RetryAfterMs => self.retry_after.map(|after| millis(after).into()),
            Variable::NeverBecause => self.never_because.map(Json::from),
            Variable::ViolatedPolicies => Some(self.violated_policies.into()),
        }
    }

    /// The value of a variable as text.
    fn text(&self, variable: Variable) -> String {
        match self.json(variable) {
            None => String::new(),
            Some(Json::String(text)) => text,
            Some(Json::Array(_)) => self.violated_policies.join(", "),
            Some(other) => other.to_string(),
        }
    }
}

/// Whole seconds, rounded up, at least one, as in `Retry-After`.
fn seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0)).max(1)
}

/// Whole milliseconds, rounded up, at least one, as in `retry-after-ms`.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).max(1)
}

/// How values become part of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Escaping {
    /// Values are inserted as they are, for a text that is escaped as a whole.
    Nothing,
    /// Characters that control a terminal are escaped, for plain text.
    Hidden,
    /// Characters that control a terminal, and those that begin or end markup, are escaped.
    Markup,
}

/// A text with variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TemplateText(Vec<TextPart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum TextPart {
    Literal(String),
    Variable(Variable),
}

impl TemplateText {
    /// Reads a text. `{name}` is a variable, `{{` and `}}` are braces. Otherwise the error says what is wrong.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, from_brace) = rest.split_at(at);
            literal.push_str(before);
            let line = || line_of(text, text.len() - from_brace.len());
            if let Some(after) = from_brace.strip_prefix("{{").or_else(|| from_brace.strip_prefix("}}")) {
                literal.push_str(&from_brace[..1]);
                rest = after;
                continue;
            }
            let variable = from_brace.strip_prefix('{').and_then(|rest| rest.split_once('}'));
            let Some((name, after)) = variable.filter(|(name, _)| is_word(name.trim())) else {
                return Err(format!("a brace alone{}; write `{{{{` or `}}}}` for a brace itself", line()));
            };
            let Some(variable) = Variable::named(name) else { return Err(unknown(name, &line())) };
            if !literal.is_empty() {
                parts.push(TextPart::Literal(std::mem::take(&mut literal)));
            }
            parts.push(TextPart::Variable(variable));
            rest = after;
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            parts.push(TextPart::Literal(literal));
        }
        Ok(Self(parts))
    }

    /// A text without variables.
    pub(super) fn literal(text: &str) -> Self {
        Self(vec![TextPart::Literal(text.to_owned())])
    }

    /// A text that is a variable.
    pub(super) fn variable(variable: Variable) -> Self {
        Self(vec![TextPart::Variable(variable)])
    }

    /// The variable that is the whole text.
    pub(super) fn only_variable(&self) -> Option<Variable> {
        match *self.0 {
            [TextPart::Variable(variable)] => Some(variable),
            [] | [TextPart::Literal(_)] | [_, _, ..] => None,
        }
    }

    /// The text with the values of its variables; `None` if it is larger than a body may be.
    pub(super) fn render(&self, values: &DenialValues<'_>, escaping: Escaping) -> Option<String> {
        let mut out = String::new();
        for part in &self.0 {
            match part {
                TextPart::Literal(literal) => out.push_str(literal),
                TextPart::Variable(variable) => escaping.push(&mut out, &values.text(*variable)),
            }
            fits(&out)?;
        }
        Some(out)
    }
}

/// `None` if this part of a body is larger than a body may be.
pub(super) fn fits(body: &str) -> Option<()> {
    (body.len() <= BODY_BYTES_MAX).then_some(())
}

/// Whether a text between braces is meant as a variable.
fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(|letter| letter.is_alphanumeric() || matches!(letter, '_' | '-' | '.'))
}

fn unknown(name: &str, line: &str) -> String {
    let names = || Variable::ALL.map(Variable::name).into_iter();
    let mut hint = keys::hint(name, names());
    if hint.is_empty() {
        hint = format!("; there are {}, and `{{{{` stands for a brace", keys::quoted_list(names()));
    }
    format!("{}{line} is no variable{hint}", quote(&format!("{{{name}}}")))
}

/// The line of this byte, if there are several.
fn line_of(text: &str, at: usize) -> String {
    if text.trim_end().contains('\n') {
        format!(" in line {} of the text", text[..at].matches('\n').count() + 1)
    } else {
        String::new()
    }
}

impl Escaping {
    fn push(self, out: &mut String, value: &str) {
        match self {
            Self::Nothing => out.push_str(value),
            Self::Hidden => out.extend(value.chars().flat_map(printable::visible)),
            Self::Markup => {
                for character in value.chars().flat_map(printable::visible) {
                    match character {
                        '&' | '<' | '>' | '"' | '\'' | '`' | '=' => {
                            // Writing to a string does not fail.
                            let _ = write!(out, "&#{};", u32::from(character));
                        }
                        plain => out.push(plain),
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUES: DenialValues<'static> = DenialValues {
        domain: "shop",
        rule: Some("<b>\n\"x\" & 'y'"),
        limit: Some(10),
        unit: Some(Unit::Minute),
        remaining: Some(0),
        retry_after: Some(Duration::from_micros(36_000_001)),
        never_because: None,
        violated_policies: &["a", "b"],
    };

    fn rendered(text: &str, escaping: Escaping) -> String {
        TemplateText::parse(text).unwrap().render(&VALUES, escaping).unwrap()
    }

    #[test]
    fn variables_become_their_values_and_doubled_braces_one() {
        let text =
            "{{{domain}}} {limit}/{unit} {remaining} {retry_after}s {retry_after_ms} {violated_policies}{{}}";
        assert_eq!(rendered(text, Escaping::Nothing), "{shop} 10/minute 0 37s 36001 a, b{}");
        let none = DenialValues::default();
        assert_eq!(
            TemplateText::parse("[{rule}{limit}{retry_after}]")
                .unwrap()
                .render(&none, Escaping::Hidden)
                .unwrap(),
            "[]"
        );
    }

    #[test]
    fn values_are_escaped_for_plain_text_and_markup() {
        assert_eq!(rendered("{rule}", Escaping::Hidden), "<b>\\n\"x\" & 'y'");
        assert_eq!(
            rendered("<p>{rule}</p>", Escaping::Markup),
            "<p>&#60;b&#62;\\n&#34;x&#34; &#38; &#39;y&#39;</p>"
        );
    }

    #[test]
    fn wrong_text_is_refused_with_the_variables_and_the_line() {
        let problem = |text| TemplateText::parse(text).unwrap_err();
        assert_eq!(problem("{retry_aftr}"), "`{retry_aftr}` is no variable; did you mean `retry_after`?");
        assert!(
            problem("a\nb {user}\n").starts_with("`{user}` in line 2 of the text is no variable; there are")
        );
        for brace in ["{", "}", "a { b", "a } b", "{limit", "limit}", "}{limit}", "{}", "{ color: {limit}"] {
            assert!(problem(brace).starts_with("a brace alone;"), "{brace}");
        }
        for unknown in ["{ limit }", "{Limit}", "{{{limit }}}", "{user.id}"] {
            assert!(problem(unknown).contains("is no variable"), "{unknown}");
        }
    }
}
