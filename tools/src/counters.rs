//! `tollgate counters`: shows, resets or sets one counter of a server.

use std::process::ExitCode;

use axum::http::Method;
use clap::{ArgGroup, ArgMatches, Command, value_parser};
use serde_json::{Value, json};
use tollgate_counter::printable::escaped;
use tollgate_net::http_client::percent_encode;
use tollgate_wire::{
    descriptor_text, proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry,
};

use crate::{
    admin_client,
    command::{CommandError, examples, flag, printable_json, text, value},
    request,
};

pub(super) fn command() -> Command {
    let reset = flag("reset", "Reset the counter, as if it had never been used");
    let set = value("set", "N", "Reset the counter and charge N hits").value_parser(value_parser!(u64));
    let json = flag("json", "Print the answer as JSON");
    Command::new("counters")
        .about("Show, reset or set the counter of a descriptor on a server; the server logs every change")
        .after_help(examples(&[
            "tollgate counters edge remote_address=203.0.113.7",
            "tollgate counters edge remote_address=203.0.113.7 --reset",
        ]))
        .args(admin_client::args())
        .args([request::domain(), request::descriptor(), reset, set, json])
        .group(ArgGroup::new("change").args(["reset", "set"]))
}

pub(super) fn run(matches: &ArgMatches) -> Result<(String, ExitCode), CommandError> {
    let domain = matches.get_one::<String>("domain").map(String::as_str).unwrap_or_default();
    let entries = matches.get_one::<Vec<Entry>>("descriptor").map(Vec::as_slice).unwrap_or_default();
    let key = percent_encode(&descriptor_text::format(entries));
    let path = format!("/counters?domain={}&key={key}", percent_encode(domain));
    let (method, body) = match matches.get_one::<u64>("set") {
        Some(used) => (Method::PUT, json!({"used": used}).to_string()),
        None if matches.get_flag("reset") => (Method::DELETE, String::new()),
        None => (Method::GET, String::new()),
    };
    let answer = admin_client::ask(matches, method, &path, body)?;
    let text = if matches.get_flag("json") { printable_json(&answer.to_string()) } else { readable(&answer) };
    Ok((text, ExitCode::SUCCESS))
}

fn readable(answer: &Value) -> String {
    let text = |name: &str| text(&answer[name]);
    let label = rule_label(&answer["rule"], &answer["name"]);
    let mut lines = vec![format!("{} of rule {label}: {}", text("key"), text("limit"))];
    if answer["before"].is_object() {
        lines.push(format!("  before: {}", state(&answer["before"])));
        lines.push(format!("  now: {}", state(answer)));
    } else {
        lines.push(format!("  {}", state(answer)));
    }
    lines.extend(held(&answer["held"]));
    lines.extend(own_limit(&answer["own_limit"]));
    lines.extend(penalty(&answer["penalty"]));
    lines.push(format!("  counter {}, {}", text("counter"), text("kind")));
    if let Some(note) = answer["note"].as_str() {
        lines.push(format!("  {}", escaped(note)));
    }
    lines.join("\n")
}

/// The name of a rule with its path, or its path.
pub(super) fn rule_label(path: &Value, name: &Value) -> String {
    let path = text(path);
    name.as_str().map_or_else(|| path.clone(), |name| format!("{} ({path})", escaped(name)))
}

/// What reservations hold.
fn held(held: &Value) -> Vec<String> {
    let Some(first) = held["first"].as_array() else { return Vec::new() };
    let mut lines = vec![format!("  {} hits held by {} reservations", held["hits"], held["reservations"])];
    lines.extend(first.iter().map(|hold| {
        let [id, on_expiry] = ["id", "on_expiry"].map(|name| text(&hold[name]));
        format!("    {id}: {} hits, expires in {} ms: {on_expiry}", hold["hits"], hold["expires_after_ms"])
    }));
    lines
}

/// The refusals that a counter has recorded.
pub(super) fn own_limit(own: &Value) -> Option<String> {
    own.is_object().then(|| {
        let note = text(&own["note"]);
        let note = if note.is_empty() { note } else { format!("; {note}") };
        format!("  its own limit: {}{note}", own["numbers"])
    })
}

/// What is said of a penalty.
pub(super) fn penalty(penalty: &Value) -> Option<String> {
    penalty.is_object().then(|| {
        let lasts = match &penalty["ends_after_ms"] {
            Value::Null => "none lasts".to_owned(),
            left => format!("lasts another {left} ms"),
        };
        format!(
            "  penalty: {lasts}; {} so far, {} refusals in a row, forgotten in {} ms",
            penalty["penalties"], penalty["refusals"], penalty["forgotten_after_ms"]
        )
    })
}

fn state(of: &Value) -> String {
    let left = &of["remaining"];
    match of["idle_at"].as_str() {
        None => format!("{left} left, nothing counted"),
        Some(idle_at) => {
            format!("{left} left, resets in {} ms, as unused from {}", of["reset_after_ms"], escaped(idle_at))
        }
    }
}
