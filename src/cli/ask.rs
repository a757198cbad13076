//! `tollgate ask`: asks a rate limit server, ours or another's, one question.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, ValueHint, value_parser};
use tokio::{runtime, time::timeout};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::{
    api::{
        json,
        proto::envoy::{
            extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
            service::ratelimit::v3::{
                RateLimitRequest, RateLimitResponse,
                rate_limit_response::{Code, DescriptorStatus, rate_limit::Unit},
                rate_limit_service_client::RateLimitServiceClient,
            },
        },
    },
    cli::OVER_LIMIT,
};

/// How long to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn command() -> Command {
    let to = Arg::new("to")
        .long("to")
        .value_name("HOST:PORT")
        .required(true)
        .help("The server to ask, over gRPC; unix:/path/to.sock for one on a Unix socket");
    let file = |name: &'static str, help: &'static str| {
        let arg = Arg::new(name).long(name).value_name("FILE").value_parser(value_parser!(PathBuf));
        arg.value_hint(ValueHint::FilePath).help(help)
    };
    let tls = [
        file("tls-ca", "Ask over TLS, and trust whom this authority (PEM) has signed, nobody else"),
        file("tls-cert", "The certificate to show (PEM)").requires("tls-ca").requires("tls-key"),
        file("tls-key", "The key of that certificate (PEM)").requires("tls-cert"),
        Arg::new("tls-name")
            .long("tls-name")
            .value_name("HOST")
            .requires("tls-ca")
            .help("The name that the server's certificate must have [default: that of --to]"),
    ];
    let domain = Arg::new("domain").value_name("DOMAIN").required(true).help("Which set of rules applies");
    let descriptors = Arg::new("descriptor")
        .value_name("KEY=VALUE[,KEY=VALUE]...")
        .required(true)
        .action(ArgAction::Append)
        .value_parser(descriptor)
        .help(
            "What to ask about, one argument a descriptor; \\, and \\= stand for the characters themselves",
        );
    let hits = Arg::new("hits")
        .long("hits")
        .value_name("N")
        .value_parser(value_parser!(u64).range(1..))
        .help("How many hits to take [default: 1]");
    let look = Arg::new("look").long("look").action(ArgAction::SetTrue).help("Take nothing, only look");
    let refund = Arg::new("refund")
        .long("refund")
        .value_name("N")
        .value_parser(value_parser!(u64).range(1..))
        .help("How many hits to give back");
    let json = Arg::new("json").long("json").action(ArgAction::SetTrue).help("Print the answer as JSON");
    Command::new("ask")
        .about("Asks a server once; exits 0 if that passes, 2 if it is over a limit, 1 if there is no answer")
        .args([to, domain, descriptors, hits, look, refund, json])
        .args(tls)
        .group(ArgGroup::new("what").args(["hits", "look", "refund"]))
}

pub(super) fn run(matches: &ArgMatches) -> ExitCode {
    let text = |name: &str| matches.get_one::<String>(name).cloned().unwrap_or_default();
    let request = request(matches, text("domain"));
    let answer = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(async {
            let tls = tls(matches)?;
            ask(&text("to"), tls, request.clone()).await
        }),
        Err(error) => Err(error.to_string()),
    };
    let printed = answer.and_then(|answer| {
        let text = if matches.get_flag("json") {
            json::response(&answer).map_err(|error| error.to_string())?
        } else {
            readable(&request, &answer)
        };
        Ok((text, answer.overall_code()))
    });
    match printed {
        Ok((text, code)) => {
            println!("{text}");
            if code == Code::OverLimit { ExitCode::from(OVER_LIMIT) } else { ExitCode::SUCCESS }
        }
        Err(why) => {
            eprintln!("no answer from {}: {why}", text("to"));
            ExitCode::FAILURE
        }
    }
}

fn request(matches: &ArgMatches, domain: String) -> RateLimitRequest {
    let refund = matches.get_one::<u64>("refund").copied();
    let look = matches.get_flag("look").then_some(0);
    let hits = refund.or(look).or(matches.get_one::<u64>("hits").copied());
    let entries = matches.get_many::<Vec<Entry>>("descriptor").into_iter().flatten();
    let descriptors = entries.map(|entries| RateLimitDescriptor {
        entries: entries.clone(),
        limit: None,
        hits_addend: hits,
        is_negative_hits: refund.is_some(),
    });
    RateLimitRequest { domain, descriptors: descriptors.collect(), hits_addend: 0 }
}

/// What the flags say about TLS; without an authority there is none.
fn tls(matches: &ArgMatches) -> Result<Option<ClientTlsConfig>, String> {
    let read = |path: &Path| fs::read(path).map_err(|error| format!("{}: {error}", path.display()));
    let file = |name: &str| matches.get_one::<PathBuf>(name).map(|path| read(path)).transpose();
    let Some(authority) = file("tls-ca")? else { return Ok(None) };
    let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority));
    if let (Some(cert), Some(key)) = (file("tls-cert")?, file("tls-key")?) {
        config = config.identity(Identity::from_pem(cert, key));
    }
    if let Some(name) = matches.get_one::<String>("tls-name") {
        config = config.domain_name(name);
    }
    Ok(Some(config))
}

async fn ask(
    to: &str,
    tls: Option<ClientTlsConfig>,
    request: RateLimitRequest,
) -> Result<RateLimitResponse, String> {
    let uri = match &tls {
        _ if to.starts_with("unix:") => to.to_owned(),
        Some(_) => format!("https://{to}"),
        None => format!("http://{to}"),
    };
    let mut endpoint =
        Endpoint::from_shared(uri).map_err(|_| "this is no HOST:PORT".to_owned())?.connect_timeout(PATIENCE);
    if let Some(tls) = tls {
        endpoint = endpoint.tls_config(tls).map_err(|error| causes(&error))?;
    }
    let asked = async {
        let channel = endpoint.connect().await.map_err(|error| causes(&error))?;
        let mut client = RateLimitServiceClient::new(channel);
        let answer = client.should_rate_limit(request).await;
        answer
            .map(tonic::Response::into_inner)
            .map_err(|status| format!("{} ({:?})", status.message(), status.code()))
    };
    timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err(format!("none within {} s", PATIENCE.as_secs())))
}

/// An error with all that caused it, outermost first.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Reads `key=value,key=value`, in which a backslash takes the next character as it is.
fn descriptor(text: &str) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    let (mut key, mut part) = (None, String::new());
    let mut characters = text.chars();
    loop {
        match characters.next() {
            Some('\\') => part.push(characters.next().ok_or("a backslash at the end takes nothing")?),
            Some('=') if key.is_none() => key = Some(std::mem::take(&mut part)),
            Some(',') | None if key.is_none() => return Err(format!("`{part}` has no `=`; write key=value")),
            end @ (Some(',') | None) => {
                let (key, value) = (key.take().unwrap_or_default(), std::mem::take(&mut part));
                if key.is_empty() {
                    return Err(format!("`={value}` has no key; write key=value"));
                }
                entries.push(Entry { key, value });
                if end.is_none() {
                    return Ok(entries);
                }
            }
            Some(character) => part.push(character),
        }
    }
}

/// One line for the whole, and one for each descriptor.
fn readable(request: &RateLimitRequest, answer: &RateLimitResponse) -> String {
    let overall = match answer.overall_code() {
        Code::Ok => "passed",
        Code::OverLimit => "over limit",
        Code::Unknown => "unknown",
    };
    let lines = request.descriptors.iter().zip(&answer.statuses).map(|(descriptor, status)| {
        let entries = descriptor.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value));
        format!("\n  {}: {}", entries.collect::<Vec<_>>().join(","), status_line(status))
    });
    overall.to_owned() + &lines.collect::<String>()
}

fn status_line(status: &DescriptorStatus) -> String {
    let Some(limit) = &status.current_limit else {
        return "no limit".to_owned();
    };
    let code = if status.code() == Code::OverLimit { "over limit" } else { "passed" };
    let per = match limit.unit() {
        Unit::Unknown => String::new(),
        unit => format!(" per {}", unit.as_str_name().to_lowercase()),
    };
    let reset = status.duration_until_reset.as_ref().map(|reset| {
        let exact = Duration::new(reset.seconds.try_into().unwrap_or(0), reset.nanos.try_into().unwrap_or(0));
        format!(", resets in {exact:?}")
    });
    let name = if limit.name.is_empty() { String::new() } else { format!(", rule {}", limit.name) };
    let (left, most) = (status.limit_remaining, limit.requests_per_unit);
    format!("{code}, {left} left of {most}{per}{}{name}", reset.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, value: &str) -> Entry {
        Entry { key: key.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn a_backslash_takes_a_comma_or_an_equals_sign_as_it_is() {
        assert_eq!(
            descriptor(r"path=/a\,b,que\=ry=x=y,empty="),
            Ok(vec![entry("path", "/a,b"), entry("que=ry", "x=y"), entry("empty", "")])
        );
    }

    #[test]
    fn a_descriptor_without_a_key_or_an_equals_sign_is_refused_with_what_is_wrong() {
        for (text, wrong) in [("user", "`user` has no `=`"), ("a=b,", "`` has no `=`"), ("=b", "has no key")]
        {
            assert!(descriptor(text).unwrap_err().contains(wrong), "{text}");
        }
    }
}
