//! Converts YAML to JSON.

use serde_json::{Map, Number, Value as Json};

use crate::yaml::{Resolved, Scalar, YamlNode, YamlProblem, YamlValue, quote};

impl YamlNode<'_> {
    /// The value as JSON. Reports numbers that JSON cannot represent and replaces them by null.
    pub fn to_json(&self, problems: &mut Vec<YamlProblem>) -> Json {
        match &self.value {
            YamlValue::Scalar(scalar) => scalar.to_json().unwrap_or_else(|| {
                let what = format!(
                    "{} is a number that JSON cannot hold; write it as text, in quotes",
                    quote(&scalar.text)
                );
                problems.push(YamlProblem { mark: self.mark, what });
                Json::Null
            }),
            YamlValue::List(items) => items.iter().map(|item| item.to_json(problems)).collect(),
            YamlValue::Mapping(pairs) => {
                let fields = pairs.iter().map(|pair| (pair.key.to_string(), pair.value.to_json(problems)));
                Json::Object(fields.collect::<Map<_, _>>())
            }
            YamlValue::Unreadable => Json::Null,
        }
    }
}

impl Scalar<'_> {
    fn to_json(&self) -> Option<Json> {
        match self.resolve() {
            Resolved::Null => Some(Json::Null),
            Resolved::Bool(value) => Some(Json::Bool(value)),
            Resolved::Integer(value) => i64::try_from(value)
                .map(Number::from)
                .or_else(|_| u64::try_from(value).map(Number::from))
                .ok()
                .or_else(|| Number::from_f64(value as f64))
                .map(Json::Number),
            Resolved::Float(value) => Number::from_f64(value).map(Json::Number),
            Resolved::Text => Some(Json::String(self.text.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::yaml::load;

    #[test]
    fn yaml_converts_to_equal_json() {
        let text = "a: yes\nb: [1, 0x10, 1.5, ~, '1', text]\nc: {d: }\n";
        let stream = load(text.as_bytes());
        let mut problems = Vec::new();
        let json = stream.documents[0].to_json(&mut problems);
        assert_eq!(json, json!({"a": true, "b": [1, 16, 1.5, null, "1", "text"], "c": {"d": null}}));
        assert_eq!(problems, []);
    }

    #[test]
    fn number_that_json_cannot_hold_is_reported() {
        let mut problems = Vec::new();
        load(b"a:\n  b: .inf\n").documents[0].to_json(&mut problems);
        assert_eq!((problems[0].mark.line, problems[0].mark.column), (2, 6));
    }
}
