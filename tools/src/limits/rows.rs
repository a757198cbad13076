//! Limits of their own in lines of a file: JSON as the API has it, or CSV.

use serde_json::{Value, json};
use tollgate_counter::{
    descriptor::{self, escaped, unescaped},
    named,
};

use crate::{columns::Columns, command::list};

named! {
    /// A format of limits in lines.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RowFormatName {
        /// An object in each line.
        Json = "json",
        /// Columns, separated by commas.
        Csv = "csv",
    }
}

/// The flags for numbers, with their names in JSON.
pub(super) const NUMBERS: [(&str, &str); 5] = [
    ("requests-per-unit", "requestsPerUnit"),
    ("burst", "burst"),
    ("refill-amount", "refillAmount"),
    ("max-in-flight", "maxInFlight"),
    ("overdraft-limit", "overdraftLimit"),
];
/// The units of a number of requests.
pub(super) const UNITS: [&str; 7] = ["second", "minute", "hour", "day", "week", "month", "year"];
/// The columns of texts, with their names in JSON.
const TEXTS: [(&str, &str); 2] = [("note", "note"), ("set_by", "setBy")];
/// What an export says of a limit and what does not set it.
const ONLY_SHOWN: [&str; 3] = ["version", "setAt", "setByIsClaimed"];

/// Reads lines of one format.
#[derive(Debug)]
pub(super) enum RowReader {
    Json,
    Csv(Columns),
}

impl RowFormatName {
    /// The first line.
    pub(super) fn header(self) -> Option<String> {
        match self {
            Self::Json => None,
            Self::Csv => Some(column_names().collect::<Vec<_>>().join(",")),
        }
    }

    /// The line of a limit, as the API has it.
    pub(super) fn line(self, limit: &Value) -> Result<String, String> {
        match self {
            Self::Json => Ok(crate::command::printable_json(&limit.to_string())),
            Self::Csv => {
                let cells: Result<Vec<_>, _> = column_names().map(|name| cell(limit, &name)).collect();
                Ok(cells?.join(","))
            }
        }
    }
}

impl RowReader {
    /// The reader of a file that begins with this line.
    pub(super) fn new(first: &str) -> Self {
        if first.trim_start().starts_with('{') { Self::Json } else { Self::Csv(Columns::new(None)) }
    }

    /// The limit of a line, as the API has it; `None` for a header.
    pub(super) fn read(&mut self, line: &str) -> Result<Option<Value>, String> {
        match self {
            Self::Json => {
                let limit: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
                let Value::Object(mut limit) = limit else { return Err("not an object".to_owned()) };
                limit.retain(|name, _| !ONLY_SHOWN.contains(&&**name));
                Ok(Some(limit.into()))
            }
            Self::Csv(columns) => {
                if columns.read(line)? {
                    return from_columns(columns).map(Some);
                }
                let is_known = |name: &&String| column_names().any(|known| known == **name);
                match columns.names().iter().find(|name| !is_known(name)) {
                    None => Ok(None),
                    Some(unknown) => Err(format!(
                        "unknown column `{unknown}`; the columns are {}",
                        column_names().collect::<Vec<_>>().join(", ")
                    )),
                }
            }
        }
    }
}

/// The names of the columns.
fn column_names() -> impl Iterator<Item = String> {
    let numbers = NUMBERS.iter().map(|(flag, _)| flag.replace('-', "_"));
    let before = ["domain", "descriptor"].map(str::to_owned);
    let after = ["unit", "unlimited", "expires_after"].map(str::to_owned);
    before.into_iter().chain(numbers).chain(after).chain(TEXTS.map(|(name, _)| name.to_owned()))
}

/// The value of a column of a limit.
fn cell(limit: &Value, column: &str) -> Result<String, String> {
    let text = |name: &str| limit[name].as_str().unwrap_or_default().to_owned();
    let value = match column {
        "domain" => escaped(text("domain").as_bytes()).into_owned(),
        "descriptor" => {
            let entries = list(&limit["key"]["entries"]);
            let part = |value: &Value| unescaped(value.as_str().unwrap_or_default()).map(Vec::from);
            let entry = |entry: &Value| Ok::<_, String>((part(&entry["key"])?, part(&entry["value"])?));
            descriptor::format(entries.iter().map(entry).collect::<Result<Vec<_>, _>>()?)
        }
        "unit" => text("unit").to_lowercase(),
        "unlimited" if limit["unlimited"] == true => "true".to_owned(),
        "unlimited" => String::new(),
        "expires_after" => text("expiresAfter"),
        other => match TEXTS.iter().find(|(name, _)| *name == other) {
            Some((_, field)) => escaped(text(field).as_bytes()).into_owned(),
            None => {
                let number = NUMBERS.iter().find(|(flag, _)| flag.replace('-', "_") == other);
                number.map_or_else(String::new, |(_, field)| text(field))
            }
        },
    };
    let is_quoted = value.contains([',', '"']) || value.trim() != value;
    Ok(if is_quoted { format!("\"{}\"", value.replace('"', "\"\"")) } else { value })
}

/// The limit of a line of CSV.
fn from_columns(columns: &Columns) -> Result<Value, String> {
    let text = |name: &str| columns.get(name).map(|text| in_text(name, text)).transpose();
    let domain = text("domain")?.ok_or("`domain` is missing")?;
    let entries = descriptor::parse(columns.get("descriptor").ok_or("`descriptor` is missing")?)
        .map_err(|error| format!("`descriptor`: {error}"))?;
    let entry = |(key, value): &(Vec<u8>, Vec<u8>)| json!({"key": escaped(key), "value": escaped(value)});
    let value = |name: &str| {
        let is_text = TEXTS.iter().any(|(text, _)| *text == name);
        if is_text { text(name) } else { Ok(columns.get(name).map(str::to_owned)) }
    };
    limit(&domain, entries.iter().map(entry).collect(), value)
}

/// The limit of a key in `domain`, as the API has it. `value` returns the value of a column.
pub(super) fn limit(
    domain: &str,
    entries: Value,
    value: impl Fn(&str) -> Result<Option<String>, String>,
) -> Result<Value, String> {
    let mut limit = json!({"domain": domain, "key": {"entries": entries}});
    for (flag, field) in NUMBERS {
        let name = flag.replace('-', "_");
        if let Some(number) = value(&name)? {
            let number: u64 = number.parse().map_err(|_| format!("`{name}` is no number: {number:?}"))?;
            limit[field] = number.to_string().into();
        }
    }
    if let Some(unit) = value("unit")? {
        if !UNITS.contains(&&*unit) {
            return Err(format!("`unit` is one of {}, not {unit:?}", UNITS.join(", ")));
        }
        limit["unit"] = unit.to_uppercase().into();
    }
    match value("unlimited")?.as_deref() {
        None | Some("false") => {}
        Some("true") => limit["unlimited"] = true.into(),
        Some(other) => return Err(format!("`unlimited` is true or false, not {other:?}")),
    }
    if let Some(after) = value("expires_after")? {
        let is_number = after.bytes().all(|byte| byte.is_ascii_digit());
        limit["expiresAfter"] = if is_number { format!("{after}s") } else { after }.into();
    }
    for (name, field) in TEXTS {
        if let Some(text) = value(name)? {
            limit[field] = text.into();
        }
    }
    Ok(limit)
}

/// A text without its escapes.
fn in_text(name: &str, escaped: &str) -> Result<String, String> {
    let bytes = unescaped(escaped).map_err(|error| format!("`{name}`: {error}"))?;
    String::from_utf8(bytes.into_owned()).map_err(|_| format!("`{name}` is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn limit_of_an_exported_line_is_the_same(
            texts in prop::array::uniform5(any::<String>()),
            number in prop::option::of(any::<u64>()),
            unit in prop::option::of(prop::sample::select(&UNITS[..])),
            unlimited: bool,
        ) {
            let [domain, key, value, note, set_by] = texts;
            prop_assume!(!domain.is_empty() && !key.is_empty() && !note.is_empty() && !set_by.is_empty());
            let entry = json!({"key": escaped(key.as_bytes()), "value": escaped(value.as_bytes())});
            let mut limit = json!({
                "domain": domain, "key": {"entries": [entry]}, "note": note, "setBy": set_by,
                "expiresAfter": "1.5s",
            });
            let mut add = |name: &str, value: Option<Value>| {
                if let Some(value) = value {
                    limit[name] = value;
                }
            };
            add("burst", number.map(|number| number.to_string().into()));
            add("unit", unit.map(|unit| unit.to_uppercase().into()));
            add("unlimited", unlimited.then(|| true.into()));
            for format in RowFormatName::ALL {
                let lines: Vec<_> = format.header().into_iter().chain([format.line(&limit).unwrap()]).collect();
                let mut reader = RowReader::new(&lines[0]);
                let read: Vec<_> =
                    lines.iter().filter_map(|line| reader.read(line).unwrap()).collect();
                prop_assert_eq!(&read, &[limit.clone()], "{:?}", lines);
            }
        }
    }

    #[test]
    fn wrong_column_or_value_is_named() {
        let problem = |header: &str, line: &str| {
            let mut reader = RowReader::new(header);
            reader.read(header).and_then(|_| reader.read(line)).unwrap_err()
        };
        let header = "domain,descriptor,requests_per_unit,unit,unlimited";
        for (header, line, expected) in [
            ("domain,key", "", "unknown column `key`; the columns are domain, descriptor,"),
            (header, ",user=a,1,,", "`domain` is missing"),
            (header, "d,,1,,", "`descriptor` is missing"),
            (header, "d,user,1,,", "`descriptor`: "),
            (header, "d,user=a,-1,,", "`requests_per_unit` is no number: \"-1\""),
            (header, "d,user=a,1,eon,", "`unit` is one of second, minute, hour, day, week, month, year"),
            (header, "d,user=a,1,,yes", "`unlimited` is true or false"),
            (header, "d,user=a,1", "another number of columns"),
            ("{}", "[]", "not an object"),
        ] {
            let problem = problem(header, line);
            assert!(problem.starts_with(expected), "{line}: {problem}");
        }
    }
}
