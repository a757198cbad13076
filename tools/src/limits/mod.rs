//! `tollgate limits`: reads, sets, removes, lists, exports and imports the limits of keys of their own.

use std::process::ExitCode;

use axum::http::Method;
use clap::{Arg, ArgMatches, Command, ValueHint, value_parser};
use serde_json::{Value, json};
use tollgate_counter::{descriptor::escaped, printable};
use tollgate_wire::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;

use crate::{
    admin_client,
    command::{CommandError, examples, flag, list, one_of, printable_json, text, value},
    request, target,
};

mod import;
mod rows;

use import::error;
use rows::{NUMBERS, RowFormatName, UNITS};

pub(super) fn command() -> Command {
    let one = |name: &'static str, about: &'static str| {
        Command::new(name).about(about).args([request::domain(), request::descriptor()])
    };
    let number = |(name, _): (&'static str, _)| {
        let help = format!("The `{}` of the key", name.replace('-', "_"));
        value(name, "N", "").value_parser(value_parser!(u64)).help(help)
    };
    let set = one("set", "Set the limit of one key")
        .args(NUMBERS.map(number))
        .arg(
            value("unit", "UNIT", "The unit of the `requests_per_unit` of the key, for buckets")
                .value_parser(UNITS)
                .requires("requests-per-unit"),
        )
        .arg(flag("unlimited", "Let everything pass, and count it"))
        .args([
            value("expires-after", "SECONDS", "End the limit by itself").value_parser(value_parser!(u64)),
            value("note", "TEXT", "A note for operators"),
            value("set-by", "NAME", "Who sets it, unless a client certificate says so"),
            value("replaces", "VERSION", "The version that it replaces; 0 if there is none")
                .value_parser(value_parser!(u64)),
        ]);
    let list = |name: &'static str, about: &'static str| {
        Command::new(name).about(about).args([
            Arg::new("domain").value_name("DOMAIN").help("Domain of the rules [default: all]"),
            request::descriptor().required(false).help("Entries with which the descriptors begin"),
        ])
    };
    let file = Arg::new("file").value_name("FILE").required(true).value_hint(ValueHint::FilePath).help(
        "File as `export` prints it: a limit in JSON on each line, or CSV whose first line names the columns",
    );
    let format =
        value("format", "FORMAT", "json or csv [default: json]").value_parser(one_of!(RowFormatName));
    let [to, token] = admin_client::args();
    Command::new("limits")
        .about("Read, set, remove, list, export and import limits of keys of their own")
        .after_help(examples(&[
            "tollgate limits get api user=241531 --token-file token",
            "tollgate limits set api user=241531 --requests-per-unit 5000 --token-file token",
            "tollgate limits import limits.jsonl --token-file token",
        ]))
        .arg(to.default_value("127.0.0.1:8080").help("Address of the server's HTTP listener").global(true))
        .arg(token.global(true))
        .args(target::tls_args().map(|arg| arg.global(true)))
        .subcommand_required(true)
        .subcommand(one("get", "Print the limit of one key"))
        .subcommand(set)
        .subcommand(one("clear", "Remove the limit of one key"))
        .subcommand(list("list", "Print limits, one on a line"))
        .subcommand(list("export", "Print limits as `import` reads them, one on a line").arg(format))
        .subcommand(
            Command::new("import")
                .about("Set the limits of a file")
                .args([file, flag("dry-run", "Let the server check all limits, and set nothing")]),
        )
}

pub(super) fn run(matches: &ArgMatches) -> Result<(String, ExitCode), CommandError> {
    let (name, matches) = matches.subcommand().expect("clap requires one");
    let text = match name {
        "set" => set(matches)?,
        "clear" => one_result(&call(matches, "clear", &named(matches))?)?,
        "list" => listed(matches, "", |limit| Ok(printable_json(&readable(limit))))?,
        "export" => export(matches)?,
        "import" => import::run(matches)?,
        _get => one_result(&call(matches, "get", &named(matches))?)?,
    };
    Ok((text, ExitCode::SUCCESS))
}

/// The answer to a call of the API.
fn call(matches: &ArgMatches, verb: &str, body: &Value) -> Result<Value, String> {
    admin_client::ask(matches, Method::POST, &format!("/v1/limits/{verb}"), body.to_string())
}

fn domain(matches: &ArgMatches) -> &str {
    matches.get_one::<String>("domain").map(String::as_str).unwrap_or_default()
}

/// The entries of the arguments, escaped.
fn entries(matches: &ArgMatches) -> Value {
    let entries = matches.get_one::<Vec<Entry>>("descriptor").map(Vec::as_slice).unwrap_or_default();
    let entry = |entry: &Entry| json!({"key": escaped(&entry.key), "value": escaped(&entry.value)});
    entries.iter().map(entry).collect()
}

fn named(matches: &ArgMatches) -> Value {
    json!({"domain": domain(matches), "descriptors": [{"entries": entries(matches)}]})
}

fn set(matches: &ArgMatches) -> Result<String, String> {
    let value = |name: &str| {
        let flag = name.replace('_', "-");
        if name == "expires_after" {
            return Ok(matches.get_one::<u64>(&flag).map(u64::to_string));
        }
        // As written: clap has checked it.
        let mut written = matches.get_raw(&flag).into_iter().flatten();
        Ok(written.next().map(|text| text.to_string_lossy().into_owned()))
    };
    let limit = rows::limit(domain(matches), entries(matches), value)?;
    let mut set = json!({"limit": limit});
    if let Some(version) = matches.get_one::<u64>("replaces") {
        set["replacesVersion"] = version.to_string().into();
    }
    one_result(&call(matches, "set", &json!({"limits": [set]}))?)
}

/// The only result of an answer in words.
fn one_result(answer: &Value) -> Result<String, String> {
    let result = &answer["results"][0];
    if let Some(why) = error(result) {
        return Err(why);
    }
    let rule = text(&result["rule"]);
    Ok(match &result["limit"] {
        Value::Null => format!("no limit of its own: the numbers of rule {rule} apply"),
        limit => format!("{} by rule {rule}", readable(limit)),
    })
}

/// A limit on one line.
fn readable(limit: &Value) -> String {
    let entries = list(&limit["key"]["entries"]);
    let entries: Vec<_> =
        entries.iter().map(|entry| format!("{}={}", text(&entry["key"]), text(&entry["value"]))).collect();
    let numbers = NUMBERS.iter().filter_map(|(flag, field)| {
        Some(format!("{} {}", flag.replace('-', "_"), limit.get(field)?.as_str()?))
    });
    let unit = limit["unit"].as_str().map(|unit| format!("unit {}", unit.to_lowercase()));
    let unlimited = (limit["unlimited"] == true).then(|| "unlimited".to_owned());
    let end = limit["expiresAfter"].as_str().map(|after| format!("ends in {after}"));
    let note = limit["note"].as_str().map(printable::escaped);
    let claimed = if limit["setByIsClaimed"] == true { " (claimed)" } else { "" };
    let set_by = limit["setBy"].as_str().map(|name| format!("set by {}{claimed}", printable::escaped(name)));
    let version = limit["version"].as_str().map(|version| format!("version {version}"));
    let all: Vec<_> =
        numbers.chain(unit).chain(unlimited).chain(end).chain(note).chain(set_by).chain(version).collect();
    format!("{} {}: {}", text(&limit["domain"]), entries.join(","), all.join(", "))
}

/// A line for each limit of all pages of a list, after a `header` if it is not empty.
fn listed(
    matches: &ArgMatches,
    header: &str,
    line: impl Fn(&Value) -> Result<String, String>,
) -> Result<String, String> {
    let mut lines = header.to_owned();
    let mut body = json!({"domain": domain(matches), "prefix": entries(matches), "pageSize": 1_000});
    loop {
        let page = call(matches, "list", &body)?;
        for limit in list(&page["limits"]) {
            if !lines.is_empty() {
                lines.push('\n');
            }
            lines.push_str(&line(limit)?);
        }
        match page["nextPageToken"].as_str() {
            Some(token) if !token.is_empty() => body["pageToken"] = token.into(),
            _last => return Ok(lines),
        }
    }
}

/// All limits, as `import` reads them.
fn export(matches: &ArgMatches) -> Result<String, String> {
    let format = matches.get_one::<RowFormatName>("format").copied().unwrap_or(RowFormatName::Json);
    listed(matches, &format.header().unwrap_or_default(), |limit| format.line(limit))
}
