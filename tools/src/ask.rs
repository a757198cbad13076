//! `tollgate ask`: sends one request to a rate limit server, Tollgate or another.

use std::{process::ExitCode, time::Duration};

use clap::{ArgMatches, Command};
use prost::Message as _;
use tokio::time::timeout;
use tollgate_counter::printable::escaped;
use tollgate_telemetry::causes;
use tollgate_wire::{
    descriptor_text, json,
    proto::envoy::{
        extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride,
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse,
            rate_limit_response::{Code, DescriptorStatus, rate_limit::Unit},
            rate_limit_service_client::RateLimitServiceClient,
        },
        r#type::v3::RateLimitUnit,
    },
};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::{
    command::{CommandError, NO_RULE, OVER_LIMIT, block_on, examples, printable_json},
    request,
    target::{self, Target, TlsOptions},
};

/// The full name of the answer's message.
const RESPONSE: &str = "envoy.service.ratelimit.v3.RateLimitResponse";

/// The time to wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

pub(super) fn command() -> Command {
    let command = Command::new("ask")
        .about("Send one request to a server; exits 0 if it passes, 2 if it is over a limit, 3 if no rule applies, 1 without an answer")
        .after_help(examples(&[
            "tollgate ask edge remote_address=203.0.113.7",
            "tollgate ask edge route=login,account=ada path=/search --peek",
            "tollgate ask --to tollgate:8081 --tls-ca ca.crt shop user=ada --hits 3",
        ]))
        .args(target::args());
    request::with_request(command)
}

pub(super) fn run(matches: &ArgMatches) -> Result<(String, ExitCode), CommandError> {
    let request = request::request(matches);
    let answered =
        block_on(async { ask(target::from_matches(matches)?, request.clone()).await }).and_then(|asked| {
            let (answer, missing) = asked;
            let text = if matches.get_flag("json") {
                json::text(json::message(RESPONSE), &answer.encode_to_vec())
                    .map(|text| printable_json(&text))
                    .map_err(|error| error.to_string())?
            } else {
                readable(&request, &answer, missing)
            };
            Ok((text, exit_code(&answer)))
        });
    let to = || matches.get_one::<String>("to").map(String::as_str).unwrap_or_default();
    Ok(answered.map_err(|why| format!("no answer from {}: {why}", to()))?)
}

fn exit_code(answer: &RateLimitResponse) -> ExitCode {
    if answer.overall_code() == Code::OverLimit {
        ExitCode::from(OVER_LIMIT)
    } else if answer.statuses.iter().all(has_no_rule) {
        ExitCode::from(NO_RULE)
    } else {
        ExitCode::SUCCESS
    }
}

/// Whether no limit applies, and the rule is not an unlimited one, of which everything is left.
fn has_no_rule(status: &DescriptorStatus) -> bool {
    status.current_limit.is_none() && status.limit_remaining != u32::MAX
}

/// What has no rule.
#[derive(Clone, Copy)]
enum Missing {
    Domain,
    Descriptor,
}

/// A request that charges nothing and brings a limit, which applies if its domain has rules.
fn with_own_limit(mut request: RateLimitRequest) -> RateLimitRequest {
    for descriptor in &mut request.descriptors {
        descriptor.limit =
            Some(RateLimitOverride { requests_per_unit: 1, unit: RateLimitUnit::Second.into() });
        descriptor.hits_addend = Some(0);
        descriptor.is_negative_hits = false;
    }
    request
}

fn trust(tls: TlsOptions) -> ClientTlsConfig {
    let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(tls.authority));
    if let Some([cert, key]) = tls.identity {
        config = config.identity(Identity::from_pem(cert, key));
    }
    if let Some(name) = tls.name {
        config = config.domain_name(name);
    }
    config
}

/// The answer, and what has no rule if no descriptor has one and the server says it.
async fn ask(
    target: Target,
    request: RateLimitRequest,
) -> Result<(RateLimitResponse, Option<Missing>), String> {
    let Target { to, tls } = target;
    let uri = match &tls {
        _ if to.starts_with("unix:") => to,
        Some(_) => format!("https://{to}"),
        None => format!("http://{to}"),
    };
    let mut endpoint =
        Endpoint::from_shared(uri).map_err(|_| "not HOST:PORT".to_owned())?.connect_timeout(TIMEOUT);
    if let Some(tls) = tls {
        endpoint = endpoint.tls_config(trust(tls)).map_err(|error| causes(&error))?;
    }
    let answered = async {
        let channel = endpoint.connect().await.map_err(|error| causes(&error))?;
        let mut client = RateLimitServiceClient::new(channel);
        let answer = client
            .should_rate_limit(request.clone())
            .await
            .map_err(|status| format!("{} ({:?})", escaped(status.message()), status.code()))?
            .into_inner();
        if !answer.statuses.iter().all(has_no_rule) {
            return Ok((answer, None));
        }
        let asked = client.should_rate_limit(with_own_limit(request)).await;
        let missing = asked.ok().map(|asked| {
            let has_rules = asked.get_ref().statuses.iter().any(|status| status.current_limit.is_some());
            if has_rules { Missing::Descriptor } else { Missing::Domain }
        });
        Ok((answer, missing))
    };
    timeout(TIMEOUT, answered).await.unwrap_or_else(|_| Err(format!("none within {} s", TIMEOUT.as_secs())))
}

/// One line for the response and one for each descriptor.
fn readable(request: &RateLimitRequest, answer: &RateLimitResponse, missing: Option<Missing>) -> String {
    let overall = match answer.overall_code() {
        Code::Ok => "passed",
        Code::OverLimit => "over limit",
        Code::Unknown => "unknown",
    };
    let lines = request.descriptors.iter().zip(&answer.statuses).map(|(descriptor, status)| {
        let hits = descriptor.hits_addend.unwrap_or_else(|| request.hits_addend.max(1).into());
        format!(
            "\n  {}: {}",
            descriptor_text::format(&descriptor.entries),
            status_line(status, hits, missing)
        )
    });
    overall.to_owned() + &lines.collect::<String>()
}

fn status_line(status: &DescriptorStatus, hits: u64, missing: Option<Missing>) -> String {
    let Some(limit) = &status.current_limit else {
        let without = match missing {
            _ if !has_no_rule(status) => "unlimited",
            Some(Missing::Domain) => "no rule for this domain",
            Some(Missing::Descriptor) | None => "no rule for this descriptor",
        };
        return without.to_owned();
    };
    let (code, until) = match status.code() {
        Code::OverLimit => ("over limit", "would pass in"),
        Code::Ok | Code::Unknown => ("passed", "resets in"),
    };
    let per = match limit.unit() {
        Unit::Unknown => String::new(),
        unit => format!(" per {}", unit.as_str_name().to_lowercase()),
    };
    // A refusal of more hits than the limit may never end, and the protocol does not say so.
    let may_be_never = status.code() == Code::OverLimit && hits > u64::from(limit.requests_per_unit);
    let reset = status.duration_until_reset.as_ref().filter(|_| !may_be_never).map(|reset| {
        let exact = Duration::new(reset.seconds.try_into().unwrap_or(0), reset.nanos.try_into().unwrap_or(0));
        format!(", {until} {exact:?}")
    });
    let name = if limit.name.is_empty() { String::new() } else { format!(", rule {}", escaped(&limit.name)) };
    let left = status.limit_remaining;
    let most = limit.requests_per_unit;
    format!("{code}, {left} left of {most}{per}{}{name}", reset.unwrap_or_default())
}
