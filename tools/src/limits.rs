//! `tollgate limits`: reads, sets, removes, lists, exports and imports the limits of keys of their own.

use std::{fs, process::ExitCode};

use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint, value_parser};
use serde_json::{Map, Value, json};
use tollgate_counter::{descriptor::escaped, printable};
use tollgate_wire::proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;

use crate::{
    admin_client::{self, AdminCall},
    command::{examples, printable_json},
    request,
};

/// The most limits of a call: the default of `api.max_requests`.
const BATCH: usize = 256;
/// The flags for numbers, with their names in JSON.
const NUMBERS: [(&str, &str); 5] = [
    ("requests-per-unit", "requestsPerUnit"),
    ("burst", "burst"),
    ("refill-amount", "refillAmount"),
    ("max-in-flight", "maxInFlight"),
    ("overdraft-limit", "overdraftLimit"),
];

pub(super) fn command() -> Command {
    let one = |name: &'static str, about: &'static str| {
        Command::new(name).about(about).args([request::domain(), request::descriptor()])
    };
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(value).help(help)
    };
    let number = |(name, _): (&'static str, _)| {
        Arg::new(name)
            .long(name)
            .value_name("N")
            .value_parser(value_parser!(u64))
            .help(format!("The `{}` of the key", name.replace('-', "_")))
    };
    let set = one("set", "Set the limit of one key")
        .args(NUMBERS.map(number))
        .arg(
            Arg::new("unlimited")
                .long("unlimited")
                .action(ArgAction::SetTrue)
                .help("Let everything pass, and count it"),
        )
        .args([
            text("expires-after", "SECONDS", "End the limit by itself").value_parser(value_parser!(u64)),
            text("note", "TEXT", "A note for operators"),
            text("set-by", "NAME", "Who sets it, for the log"),
            text("replaces", "VERSION", "The version that it replaces; 0 if there is none")
                .value_parser(value_parser!(u64)),
        ]);
    let list = |name: &'static str, about: &'static str| {
        Command::new(name).about(about).args([
            Arg::new("domain").value_name("DOMAIN").help("Domain of the rules [default: all]"),
            request::descriptor().required(false).help("Entries with which the descriptors begin"),
        ])
    };
    let file = Arg::new("file")
        .value_name("FILE")
        .required(true)
        .value_hint(ValueHint::FilePath)
        .help("File with a limit in JSON on each line, as `export` prints them");
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
        .subcommand_required(true)
        .subcommand(one("get", "Print the limit of one key"))
        .subcommand(set)
        .subcommand(one("clear", "Remove the limit of one key"))
        .subcommand(list("list", "Print limits, one on a line"))
        .subcommand(list("export", "Print limits as JSON, one on a line"))
        .subcommand(
            Command::new("import").about("Set the limits of a file").args([
                file,
                Arg::new("dry-run")
                    .long("dry-run")
                    .action(ArgAction::SetTrue)
                    .help("Only read the file, and set nothing"),
            ]),
        )
}

pub(super) fn run(matches: &ArgMatches) -> Result<(String, ExitCode), String> {
    let Some((name, matches)) = matches.subcommand() else { return Err("no subcommand".to_owned()) };
    let text = match name {
        "set" => set(matches)?,
        "clear" => one_result(&call(matches, "clear", &named(matches))?)?,
        "list" => listed(matches, readable)?,
        "export" => listed(matches, |limit| limit.to_string())?,
        "import" => import(matches)?,
        _get => one_result(&call(matches, "get", &named(matches))?)?,
    };
    Ok((text, ExitCode::SUCCESS))
}

/// The answer to a call of the API.
fn call(matches: &ArgMatches, verb: &str, body: &Value) -> Result<Value, String> {
    let path = format!("/v1/limits/{verb}");
    admin_client::ask(matches, &AdminCall { method: "POST", path, body: body.to_string() })
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
    let mut limit = Map::new();
    limit.insert("domain".into(), domain(matches).into());
    limit.insert("key".into(), json!({"entries": entries(matches)}));
    for (flag, field) in NUMBERS {
        if let Some(number) = matches.get_one::<u64>(flag) {
            limit.insert(field.into(), number.to_string().into());
        }
    }
    if matches.get_flag("unlimited") {
        limit.insert("unlimited".into(), true.into());
    }
    if let Some(seconds) = matches.get_one::<u64>("expires-after") {
        limit.insert("expiresAfter".into(), format!("{seconds}s").into());
    }
    for (flag, field) in [("note", "note"), ("set-by", "setBy")] {
        if let Some(text) = matches.get_one::<String>(flag) {
            limit.insert(field.into(), text.as_str().into());
        }
    }
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
    let rule = result["rule"].as_str().map(printable::escaped).unwrap_or_default();
    Ok(match &result["limit"] {
        Value::Null => format!("no limit of its own: the numbers of rule {rule} apply"),
        limit => format!("{} by rule {rule}", readable(limit)),
    })
}

/// Why a result has changed nothing.
fn error(result: &Value) -> Option<String> {
    Some(printable::escaped(result.get("error")?["message"].as_str().unwrap_or("unknown error")))
}

/// A limit on one line.
fn readable(limit: &Value) -> String {
    let text = |value: &Value| value.as_str().map(printable::escaped).unwrap_or_default();
    let entries = limit["key"]["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
    let entries: Vec<_> =
        entries.iter().map(|entry| format!("{}={}", text(&entry["key"]), text(&entry["value"]))).collect();
    let numbers = NUMBERS.iter().filter_map(|(flag, field)| {
        Some(format!("{} {}", flag.replace('-', "_"), limit.get(field)?.as_str()?))
    });
    let unlimited = (limit["unlimited"] == true).then(|| "unlimited".to_owned());
    let end = limit["expiresAfter"].as_str().map(|after| format!("ends in {after}"));
    let note = limit["note"].as_str().map(printable::escaped);
    let set_by = limit["setBy"].as_str().map(|name| format!("set by {}", printable::escaped(name)));
    let version = limit["version"].as_str().map(|version| format!("version {version}"));
    let all: Vec<_> = numbers.chain(unlimited).chain(end).chain(note).chain(set_by).chain(version).collect();
    format!("{} {}: {}", text(&limit["domain"]), entries.join(","), all.join(", "))
}

/// All pages of a list.
fn listed(matches: &ArgMatches, line: impl Fn(&Value) -> String) -> Result<String, String> {
    let mut lines = Vec::new();
    let mut body = json!({"domain": domain(matches), "prefix": entries(matches), "pageSize": 1_000});
    loop {
        let page = call(matches, "list", &body)?;
        let limits = page["limits"].as_array().into_iter().flatten();
        lines.extend(limits.map(|limit| printable_json(&line(limit))));
        match page["nextPageToken"].as_str() {
            Some(token) if !token.is_empty() => body["pageToken"] = token.into(),
            _last => return Ok(lines.join("\n")),
        }
    }
}

/// Sets the limits of a file, in batches. Each batch is set as a whole or not at all.
fn import(matches: &ArgMatches) -> Result<String, String> {
    let path = matches.get_one::<String>("file").map(String::as_str).unwrap_or_default();
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let mut limits = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        let limit: Value = serde_json::from_str(line).map_err(|error| format!("{path}:{number}: {error}"))?;
        let Value::Object(mut limit) = limit else { return Err(format!("{path}:{number}: not an object")) };
        // What an export says of a limit and what does not set it.
        limit.remove("version");
        limit.remove("setAt");
        limits.push((number, json!({"limit": limit})));
    }
    if matches.get_flag("dry-run") {
        return Ok(format!("{} limits in {path}; nothing is set", limits.len()));
    }
    for batch in limits.chunks(BATCH) {
        let first = batch[0].0;
        let before = format!("the lines before {first} are set");
        let body = json!({"limits": batch.iter().map(|(_, limit)| limit).collect::<Vec<_>>()});
        let answer = call(matches, "set", &body).map_err(|why| format!("{why}; {before}"))?;
        let results = answer["results"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_own = |result: &&Value| result["error"]["code"] != ABORTED;
        let failed = batch.iter().zip(results).filter(|(_, result)| result.get("error").is_some());
        let failed: Vec<_> = failed.collect();
        let worst = failed.iter().find(|(_, result)| is_own(result)).or(failed.first());
        if let Some(((number, _), result)) = worst {
            let why = error(result).unwrap_or_default();
            return Err(format!("{path}:{number}: {why}; {before}, and others of its batch may be"));
        }
    }
    Ok(format!("{} limits are set", limits.len()))
}

/// The code of a limit that is not set because another one is invalid.
const ABORTED: u64 = 10;
