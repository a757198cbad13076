//! The kinds of bodies. A template is text, or JSON whose texts have variables.

use std::fmt;

use serde_json::Value as Json;

use crate::denial_body::text::{DenialValues, Escaping, TemplateText, Variable, fits};

/// The body of a refusal as an operator has written it. What it renders to is of its content type, whatever the
/// values are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DenialTemplate {
    content_type: Box<str>,
    // As written, except for its layout.
    source: Box<str>,
    content: TemplateContent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TemplateContent {
    Text(TemplateText, Escaping),
    Json(JsonTemplate),
}

/// JSON whose texts have variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JsonTemplate {
    /// `null`, a boolean or a number.
    Fixed(Json),
    /// A text that is a variable alone becomes the value itself: a number, or a list.
    Text(TemplateText),
    List(Vec<JsonTemplate>),
    Object(Vec<(String, JsonTemplate)>),
}

impl DenialTemplate {
    pub(super) fn new(content_type: &str, source: &str, content: TemplateContent) -> Self {
        Self { content_type: content_type.into(), source: source.into(), content }
    }

    /// The body by RFC 9457 and draft-ietf-httpapi-ratelimit-headers-11: the type and the title of the problem, the
    /// names of the limits that refuse, and when to retry or why that is useless.
    pub fn problem(kind: &str, title: &str) -> Self {
        let variable = |variable| JsonTemplate::Text(TemplateText::variable(variable));
        let members = [
            ("type", JsonTemplate::Text(TemplateText::literal(kind))),
            ("title", JsonTemplate::Text(TemplateText::literal(title))),
            ("detail", variable(Variable::NeverBecause)),
            ("violated-policies", variable(Variable::ViolatedPolicies)),
            ("retry-after", variable(Variable::RetryAfter)),
        ];
        let members = members.map(|(name, member)| (name.to_owned(), member));
        Self::new(
            "application/problem+json",
            kind,
            TemplateContent::Json(JsonTemplate::Object(members.into())),
        )
    }

    /// The content type of what it renders to.
    pub fn content_type(&self) -> &str {
        &self.content_type
    }

    /// The body of a refusal; `None` if it would have more than 64 KiB.
    pub fn render(&self, values: &DenialValues<'_>) -> Option<String> {
        match &self.content {
            TemplateContent::Text(text, escaping) => text.render(values, *escaping),
            TemplateContent::Json(json) => {
                let mut out = String::new();
                json.write(values, &mut out)?;
                Some(out)
            }
        }
    }
}

impl JsonTemplate {
    /// Appends the JSON; `None` if it is larger than a body may be.
    fn write(&self, values: &DenialValues<'_>, out: &mut String) -> Option<()> {
        match self {
            Self::Fixed(json) => out.push_str(&json.to_string()),
            Self::Text(text) => {
                let json = match text.only_variable() {
                    Some(variable) => values.json(variable).unwrap_or_default(),
                    None => text.render(values, Escaping::Nothing)?.into(),
                };
                out.push_str(&json.to_string());
            }
            Self::List(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    separate(index, out);
                    item.write(values, out)?;
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                let members = members.iter().filter(|(_, member)| !member.is_absent(values));
                for (index, (name, member)) in members.enumerate() {
                    separate(index, out);
                    out.push_str(&Json::from(name.as_str()).to_string());
                    out.push(':');
                    member.write(values, out)?;
                }
                out.push('}');
            }
        }
        fits(out)
    }

    /// Whether the content is a variable that has no value.
    fn is_absent(&self, values: &DenialValues<'_>) -> bool {
        match self {
            Self::Text(text) => text.only_variable().is_some_and(|variable| values.json(variable).is_none()),
            Self::Fixed(_) | Self::List(_) | Self::Object(_) => false,
        }
    }
}

fn separate(index: usize, out: &mut String) {
    if index > 0 {
        out.push(',');
    }
}

/// The values of `denial_body` in rule files that are no mapping.
pub(super) const OFF: &str = "off";
const PROBLEM: &str = "problem";

/// The body of refusals by a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DenialBody {
    /// No body, whatever the settings say.
    Off,
    /// `application/problem+json`.
    Problem,
    /// What the operator has written.
    Template(DenialTemplate),
}

/// The body as in the rule file: `off`, `problem`, or the content type and the template.
impl fmt::Display for DenialBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str(OFF),
            Self::Problem => f.write_str(PROBLEM),
            Self::Template(template) => write!(f, "{}: {}", template.content_type, template.source),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn problem_has_policies_and_time_or_why_it_never_ends() {
        let template = DenialTemplate::problem("https://example.com/quota", "Too {much}");
        let values = DenialValues {
            violated_policies: &["per user", "a\"b"],
            retry_after: Some(Duration::from_millis(1_001)),
            ..DenialValues::default()
        };
        assert_eq!(
            template.render(&values).unwrap(),
            r#"{"type":"https://example.com/quota","title":"Too {much}","violated-policies":["per user","a\"b"],"retry-after":2}"#
        );
        let values = DenialValues { never_because: Some("larger than the limit"), ..DenialValues::default() };
        let text = template.render(&values).unwrap();
        assert!(text.contains(r#""detail":"larger than the limit""#) && !text.contains("retry-after"));
        assert_eq!(template.content_type(), "application/problem+json");
    }
}
