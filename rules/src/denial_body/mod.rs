//! The body of refusals, as rule files set it.

use crate::{
    denial_body::{
        template::{JsonTemplate, OFF, TemplateContent},
        text::{Escaping, TemplateText},
    },
    diagnostics::Diagnostics,
    yaml::{Located, Mark, YamlNode, YamlPair, YamlValue, quote, scalar::Resolved},
};

pub(crate) mod template;
pub(crate) mod text;

pub use template::DenialBody;
pub use template::DenialTemplate;
pub use text::{DenialValues, Variable};

/// The maximum size of a template, in bytes.
const TEMPLATE_BYTES_MAX: usize = 16 << 10;
/// The maximum length of a content type, in bytes.
const CONTENT_TYPE_BYTES_MAX: usize = 256;
const PLAIN: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// The body with one of the names that stand for one.
pub(crate) fn without_template(name: &str) -> DenialBody {
    match name {
        OFF => DenialBody::Off,
        _problem => DenialBody::Problem,
    }
}

/// The keys of a template as written. `Some(None)` if a value is given that was refused, which was reported.
pub(crate) struct TemplateDraft<'n> {
    pub(crate) mark: Mark,
    pub(crate) text: Option<Option<&'n Located<String>>>,
    pub(crate) json: Option<&'n YamlNode<'n>>,
    pub(crate) content_type: Option<Option<&'n Located<String>>>,
}

/// The template that is written. `None` after reporting a problem.
pub(crate) fn template(draft: &TemplateDraft<'_>, diagnostics: &Diagnostics<'_>) -> Option<DenialTemplate> {
    let content_type = draft.content_type.flatten().cloned();
    let is_unread = content_type.is_none() && draft.content_type.is_some();
    let (default, source, content) = match (draft.text, draft.json) {
        (Some(source), None) => {
            let given = content_type.as_ref().and_then(|given| escaping(&given.value));
            let source = source?;
            let text = text(source, diagnostics)?;
            let content = TemplateContent::Text(text, given.unwrap_or(Escaping::Hidden));
            (PLAIN, source.value.clone(), content)
        }
        (None, Some(value)) => {
            let json = json(value, diagnostics)?;
            (JSON, value.to_json(&mut Vec::new()).to_string(), TemplateContent::Json(json))
        }
        (Some(_), Some(_)) | (None, None) => {
            diagnostics.add(draft.mark, "a body has either `text` or `json`");
            return None;
        }
    };
    let content_type = match content_type {
        None if is_unread => return None,
        None => default.to_owned(),
        Some(given) => checked(given, &content, diagnostics)?,
    };
    let length = source.len();
    if length > TEMPLATE_BYTES_MAX {
        let what =
            format!("a template of {length} bytes is too large; at most {TEMPLATE_BYTES_MAX} are allowed");
        diagnostics.add(draft.mark, what);
        return None;
    }
    Some(DenialTemplate::new(&content_type, &source, content))
}

fn text(given: &Located<String>, diagnostics: &Diagnostics<'_>) -> Option<TemplateText> {
    TemplateText::parse(&given.value).map_err(|what| diagnostics.add(given.mark, what)).ok()
}

/// The value as JSON whose texts have variables. Reports all its problems.
fn json(node: &YamlNode<'_>, diagnostics: &Diagnostics<'_>) -> Option<JsonTemplate> {
    match &node.value {
        YamlValue::Scalar(scalar) if scalar.resolve() == Resolved::Text => {
            let given = Located { value: scalar.text.to_string(), mark: node.mark };
            text(&given, diagnostics).map(JsonTemplate::Text)
        }
        YamlValue::Scalar(_) => {
            let mut problems = Vec::new();
            let fixed = node.to_json(&mut problems);
            let is_read = problems.is_empty();
            diagnostics.add_all(problems);
            is_read.then_some(JsonTemplate::Fixed(fixed))
        }
        YamlValue::List(items) => {
            let items: Vec<_> = items.iter().map(|item| json(item, diagnostics)).collect();
            items.into_iter().collect::<Option<_>>().map(JsonTemplate::List)
        }
        YamlValue::Mapping(pairs) if let Some(variable) = unquoted(pairs) => {
            let what = format!("`{{{}}}` without quotes is a mapping; write it in quotes", variable.name());
            diagnostics.add(node.mark, what);
            None
        }
        YamlValue::Mapping(pairs) => {
            let member = |pair: &YamlPair<'_>| Some((pair.key.to_string(), json(&pair.value, diagnostics)?));
            let members: Vec<_> = pairs.iter().map(member).collect();
            members.into_iter().collect::<Option<_>>().map(JsonTemplate::Object)
        }
        YamlValue::Unreadable => None,
    }
}

/// The variable that `{name}` without quotes was meant to be.
fn unquoted(pairs: &[YamlPair<'_>]) -> Option<Variable> {
    match pairs {
        [pair]
            if matches!(
                &pair.value.value,
                YamlValue::Scalar(scalar) if scalar.text.is_empty() && !scalar.quoted
            ) =>
        {
            Variable::named(&pair.key)
        }
        [] | [_] | [_, _, ..] => None,
    }
}

/// The content type that is given, if the content is of it.
fn checked(
    Located { value: given, mark }: Located<String>,
    content: &TemplateContent,
    diagnostics: &Diagnostics<'_>,
) -> Option<String> {
    let (fits, known) = match content {
        TemplateContent::Text(..) => {
            (escaping(&given).is_some(), "that of `text` is `text/plain` or `text/html`")
        }
        TemplateContent::Json(_) => {
            (is_json(&given), "that of `json` is `application/json` or `application/NAME+json`")
        }
    };
    let fits = fits
        && given.len() <= CONTENT_TYPE_BYTES_MAX
        && given.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if !fits {
        diagnostics.add(mark, format!("`content_type` cannot be {}; {known}", quote(&given)));
    }
    fits.then_some(given)
}

/// How values are escaped in text of this content type; `None` if it is not known.
fn escaping(content_type: &str) -> Option<Escaping> {
    match &*media_type(content_type) {
        "text/plain" => Some(Escaping::Hidden),
        "text/html" => Some(Escaping::Markup),
        _another => None,
    }
}

fn is_json(content_type: &str) -> bool {
    let media_type = media_type(content_type);
    let name = media_type.strip_prefix("application/");
    name.is_some_and(|name| name == "json" || name.strip_suffix("+json").is_some_and(|name| !name.is_empty()))
}

/// A content type without its parameters.
fn media_type(content_type: &str) -> String {
    content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}
