//! `tollgate explain`: what a server would decide, and why. Charges nothing.

use std::process::ExitCode;

use axum::http::Method;
use clap::{ArgMatches, Command};
use serde_json::Value;
use tollgate_counter::printable::escaped;
use tollgate_net::http_client::percent_encode;
use tollgate_wire::descriptor_text;

use crate::{
    admin_client,
    command::{CommandError, NO_RULE, OVER_LIMIT, examples, list, printable_json, text},
    counters::{own_limit, penalty, rule_label},
    request,
};

pub(super) fn command() -> Command {
    let command = Command::new("explain").about(
        "Show what a server would decide and why, without charging anything; exits 0 if the request would pass, 2 if it would be over a limit, 3 if no rule applies, 1 without an answer",
    ).after_help(examples(&["tollgate explain edge remote_address=203.0.113.7"]));
    request::with_request(command.args(admin_client::args()))
}

pub(super) fn run(matches: &ArgMatches) -> Result<(String, ExitCode), CommandError> {
    let request = request::request(matches);
    let mut path = format!("/explain?domain={}", percent_encode(&request.domain));
    for descriptor in &request.descriptors {
        // Not as JSON, whose texts are UTF-8.
        let key = percent_encode(&descriptor_text::format(&descriptor.entries));
        let hits = descriptor.hits_addend.map(|hits| match descriptor.is_negative_hits {
            true => format!("&refund={hits}"),
            false => format!("&hits={hits}"),
        });
        path.extend([format!("&key={key}"), hits.unwrap_or_default()]);
    }
    let answer = admin_client::ask(matches, Method::GET, &path, String::new())?;
    let text = if matches.get_flag("json") { printable_json(&answer.to_string()) } else { readable(&answer) };
    Ok((text, exit_code(&answer)))
}

fn exit_code(answer: &Value) -> ExitCode {
    let has_no_rule = |descriptor: &Value| descriptor["rule"].is_null() && descriptor["limit"].is_null();
    if answer["code"] != "OK" {
        ExitCode::from(OVER_LIMIT)
    } else if list(&answer["descriptors"]).iter().all(has_no_rule) {
        ExitCode::from(NO_RULE)
    } else {
        ExitCode::SUCCESS
    }
}

/// A paragraph for the request and one for each descriptor.
fn readable(answer: &Value) -> String {
    let mut lines =
        vec![format!("decision: {} at {}; nothing was charged", outcome(answer), text(&answer["at"]))];
    if let Some(version) = answer["rules"]["version"].as_str() {
        lines.push(format!("rules of the control plane: version {}", escaped(version)));
    }
    if answer["passes_in_shadow_mode"] == true {
        lines.push("passes only because of limiter.shadow_mode".to_owned());
    }
    let refusing: Vec<_> = list(&answer["refused_by"]).iter().map(text).collect();
    if !refusing.is_empty() {
        lines.push(format!("refused by {}", refusing.join(", ")));
    }
    if let Some(content_type) = answer["denial_body"]["content_type"].as_str() {
        lines.push(format!("answered with a body of {}:", escaped(content_type)));
        let body = answer["denial_body"]["text"].as_str().unwrap_or_default();
        lines.extend(body.lines().map(|line| format!("  {}", escaped(line))));
    }
    for descriptor in list(&answer["descriptors"]) {
        lines.push(format!(
            "\n{}, {}: {}",
            text(&descriptor["descriptor"]),
            text(&descriptor["asks"]),
            outcome(descriptor)
        ));
        lines.push(format!("  {}", text(&descriptor["why"])));
        rule(descriptor, &mut lines);
        for level in list(&descriptor["levels"]) {
            looked_up(level, &mut lines);
        }
    }
    lines.join("\n")
}

fn rule(descriptor: &Value, lines: &mut Vec<String>) {
    let rule = &descriptor["rule"];
    if rule.is_object() {
        let flags = ["shadow_mode", "quota_mode"].into_iter().filter(|flag| rule[*flag] == true);
        let flags: String = flags.map(|flag| format!(", {flag}")).collect();
        let label = rule_label(&rule["path"], &rule["name"]);
        lines.push(format!("  rule {label} at {}{flags}", text(&rule["at"])));
        lines.extend(rule["overlay"].as_str().map(|at| format!("  with the overlay at {}", escaped(at))));
    }
    for (what, of) in [("", descriptor), ("candidate: ", &descriptor["candidate"])] {
        if of["limit"].is_null() {
            continue;
        }
        let verdict = &of["verdict"];
        let counter = &of["counter"];
        let is_looked_up = |from: &&str| !["the rule", "the request", "set at run time"].contains(from);
        let from = of["limit_from"].as_str().filter(is_looked_up);
        let from = from.map(|from| format!(", from {}", escaped(from))).unwrap_or_default();
        lines.push(format!("  {what}limit {}{from}", text(&of["limit"])));
        let before =
            if counter["before"]["kept"] == true { "left before" } else { "left of an unused counter" };
        lines.push(format!(
            "  {what}{}; {} {before}, {} after",
            in_words(verdict),
            counter["before"]["remaining"],
            of["remaining"]
        ));
        let is_of_key = of["limit_from"] == "set at run time" || of["limit_from"] == "the store";
        if let Some(of_rule) = descriptor["rule"]["limit"].as_str().filter(|_| is_of_key) {
            lines.push(format!("  the limit of the rule: {}", escaped(of_rule)));
        }
        if let Some(stored) = of["stored_limit"].as_str() {
            lines.push(format!("  the limit that the store names: {}", escaped(stored)));
        }
        lines.extend(own_limit(&counter["before"]["own_limit"]));
        lines.extend(penalty(&counter["before"]["penalty"]));
        shares(&of["shares"], lines);
        lines.push(format!("  {what}counter {}, {}", text(&counter["key"]), text(&counter["kind"])));
    }
}

/// The shares of clients that decide by themselves.
fn shares(of: &Value, lines: &mut Vec<String>) {
    let first = list(&of["first"]);
    let Some(clients) = of["clients"].as_u64() else { return };
    lines.push(format!(
        "  divided over {clients} clients, beside callers with a demand of {} a second",
        tenths(&of["callers_per_second"])
    ));
    for share in first {
        let slice = &share["slice"];
        let rate = &share["share"];
        let part = match slice["left"].as_u64() {
            Some(left) => format!("{left} left of a slice of {}", slice["hits"]),
            None => format!("{} a second, burst {}", rate["per_second"], rate["burst"]),
        };
        let state = if share["has_ended"] == true { "gone, its part ends" } else { "ends unless renewed" };
        lines.push(format!(
            "    {}: demand {} a second, {part}; {state} in {} ms",
            text(&share["client"]),
            tenths(&share["demand_per_second"]),
            share["ends_after_ms"],
        ));
    }
    let more = clients.saturating_sub(first.len() as u64);
    if more > 0 {
        lines.push(format!("    and {more} more"));
    }
}

fn tenths(number: &Value) -> String {
    format!("{:.1}", number.as_f64().unwrap_or_default())
}

fn in_words(verdict: &Value) -> String {
    if verdict["passes"] == true {
        return match verdict["delay_ms"].as_u64() {
            None | Some(0) => "passes now".to_owned(),
            Some(delay) => format!("passes in {delay} ms, at its turn"),
        };
    }
    match verdict["retry_after_ms"].as_u64() {
        Some(wait) => format!("refused; would pass in {wait} ms, at {}", text(&verdict["passes_at"])),
        None if verdict["never"] == false => "refused until places are freed".to_owned(),
        None => "refused; it never would pass".to_owned(),
    }
}

fn looked_up(level: &Value, lines: &mut Vec<String>) {
    let looked_up = text(&level["looked_up"]);
    let matched = &level["matched"];
    lines.push(if matched.is_object() {
        let shared = if matched["shared"] == true { ", shared by all that match" } else { "" };
        let counted = matched["counted_as"].as_str();
        let counted = counted.map(|value| format!(", counted as {}", escaped(value))).unwrap_or_default();
        let descriptor = text(&matched["descriptor"]);
        let how = text(&matched["how"]);
        let at = text(&matched["at"]);
        format!("  looked up {looked_up}: matches {descriptor} {how}{shared}{counted} ({at})")
    } else {
        format!("  looked up {looked_up}: nothing matches")
    });
    for other in list(&level["others"]) {
        let descriptor = text(&other["descriptor"]);
        let at = text(&other["at"]);
        let why = text(&other["why"]);
        lines.push(format!("    not {descriptor} ({at}): {why}"));
    }
    for other in list(&level["there"]) {
        lines.push(format!("    there is {} ({})", text(&other["descriptor"]), text(&other["at"])));
    }
    for more in ["others_more", "there_more"] {
        if let Some(number) = level[more].as_u64().filter(|number| *number > 0) {
            lines.push(format!("    and {number} more"));
        }
    }
}

fn outcome(of: &Value) -> &'static str {
    if of["code"] == "OK" { "passed" } else { "over limit" }
}
