//! JSON as YAML in blocks, for snippets of configurations.

use serde_json::Value;

/// `value` as lines of YAML.
pub(super) fn block(value: &Value) -> String {
    let mut text = String::new();
    add(value, 0, &mut text);
    text
}

/// Adds `value` at an indentation; the first line is indented already.
fn add(value: &Value, depth: usize, text: &mut String) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (index, (key, value)) in fields.iter().enumerate() {
                indent(if index == 0 { 0 } else { depth }, text);
                text.extend([scalar(key).as_str(), ":"]);
                let is_block = matches!(value, Value::Object(fields) if !fields.is_empty())
                    || matches!(value, Value::Array(items) if !items.is_empty());
                if is_block {
                    text.push('\n');
                    indent(depth + 2, text);
                } else {
                    text.push(' ');
                }
                add(value, depth + 2, text);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for (index, item) in items.iter().enumerate() {
                indent(if index == 0 { 0 } else { depth }, text);
                text.push_str("- ");
                add(item, depth + 2, text);
            }
        }
        Value::String(string) => text.extend([scalar(string).as_str(), "\n"]),
        Value::Object(_) | Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {
            text.extend([value.to_string().as_str(), "\n"]);
        }
    }
}

fn indent(depth: usize, text: &mut String) {
    text.extend(std::iter::repeat_n(' ', depth));
}

/// A text, in quotes unless it is a plain word.
fn scalar(string: &str) -> String {
    let is_plain =
        |character: char| character.is_ascii_alphanumeric() || matches!(character, '_' | '-' | '.' | '/');
    let begins_plain = string.starts_with(|first: char| first.is_ascii_alphabetic());
    // Words that YAML reads as other than a text.
    let is_reserved = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
        .contains(&string.to_ascii_lowercase().as_str());
    if begins_plain && !is_reserved && string.chars().all(is_plain) {
        string.to_owned()
    } else {
        Value::from(string).to_string()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tollgate_rules::yaml;

    use super::*;

    #[test]
    fn block_is_read_as_the_same_value() {
        let value = json!({
            "a": {"b": [1, {"c": "no", "d": [[true], []]}, {}], "e": {}},
            "@type": "type.googleapis.com/x.Y",
            "f": ["31536000s", "a: b\n# \"", "", null, 1.5, "größe"],
        });
        let text = block(&value);
        let stream = yaml::load(text.as_bytes());
        assert!(stream.problems.is_empty(), "{text}");
        assert_eq!(stream.documents[0].to_json(&mut Vec::new()), value, "{text}");
    }

    #[test]
    fn block_has_a_line_for_each_field() {
        let value = json!({"action": {"name": "tenant", "list": [{"key": "x", "time": "5s"}]}});
        let expected = "action:\n  list:\n    - key: x\n      time: \"5s\"\n  name: tenant\n";
        assert_eq!(block(&value), expected);
    }
}
