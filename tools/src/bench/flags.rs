//! The flags of `tollgate bench`.

use std::{path::PathBuf, time::Duration};

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use jiff::SignedDuration;
use tollgate_wire::proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::RateLimitRequest,
};

use crate::{
    bench::{
        frame::{BenchCall, FrameTemplate, PLACEHOLDER, place_in},
        keys::{HitDistribution, KEYS_MAX, Keys},
        run::{BenchTraffic, CallerCount, Run},
        schedule::{Arrivals, MeasuredSpan, Schedule},
    },
    command::{CommandError, examples, file, flag, value},
    request, target,
};

/// The maximum number of callers; each takes a few kilobytes.
const CALLERS_MAX: u64 = 100_000;
/// The maximum time of a flag: ten days.
const TIME_MAX: Duration = Duration::from_secs(864_000);
/// The maximum rate, in requests per second.
pub(crate) const RATE_MAX: u64 = 10_000_000;
/// The maximum exponent of Zipf's law; beyond it nearly all requests are for the first key.
const SKEW_MAX: f64 = 20.0;

/// The command `bench`.
pub(crate) fn command() -> Command {
    let descriptors = request::descriptor().action(ArgAction::Append).help(
        "Descriptor, may be repeated; {} in a value stands for the number of the key; \\, and \\= \
         stand for the characters themselves",
    );
    Command::new("bench")
        .about(
            "Generate load on a server, as fast as it answers or at a fixed rate, and report latencies; exits 0 if there was any \
             answer, otherwise 1",
        )
        .after_help(examples(&[
            "tollgate bench edge 'remote_address=10.0.0.{}' --keys 1000 --connections 4 --streams 50",
            "tollgate bench edge user=ada --rate 2000 --poisson --duration 30s",
        ]))
        .args(target::args())
        .args([request::domain(), descriptors].map(|arg| arg.required(false).required_unless_present("calls")))
        .args(traffic())
        .args(load_model())
        .arg(flag("json", "Print the results as JSON"))
}

/// The flags for the content of requests.
fn traffic() -> [Arg; 5] {
    [
        file(
            "calls",
            "JSON file with calls to send in turn, to a server of any protocol over HTTP/2: \
             [{\"path\": \"/a.B/C\", \"body\": HEX}, ...]; without a body a call is a GET",
        )
        .conflicts_with_all(["domain", "descriptor", "keys", "skew", "hits"]),
        number("keys", "Number of keys, numbered from 0 with equally many digits", "1")
            .value_parser(value_parser!(u64).range(1..=KEYS_MAX)),
        number(
            "skew",
            "Exponent of Zipf's law, by which lower keys are more frequent; 0 uses all keys in turn",
            "0",
        )
        .value_name("S")
        .value_parser(skew),
        number("hits", "Hits of each request, or a range N-M of random hits", "1")
            .value_name("N|N-M")
            .value_parser(hits),
        number("seed", "Random seed: the same seed yields the same keys, hits and arrivals", "1")
            .value_parser(value_parser!(u64)),
    ]
}

/// The flags for the load and its duration.
fn load_model() -> [Arg; 8] {
    let callers = || value_parser!(u64).range(1..=CALLERS_MAX);
    let time = |name, help| value(name, "TIME", help).value_parser(duration);
    [
        number("connections", "Number of connections", "1").value_parser(callers()),
        number("streams", "Maximum number of concurrent requests on each connection", "1").value_parser(callers()),
        value(
            "rate",
            "N",
            "Open loop: requests per second, regardless of answers; latency is measured from when a request was due \
             [default: closed loop: each stream sends its next request after the answer]",
        )
        .value_parser(value_parser!(u64).range(1..=RATE_MAX)),
        flag("poisson", "Poisson arrivals instead of equal intervals").requires("rate"),
        time("duration", "Duration of the measurement [default: 10s, or until --requests are sent]"),
        value("requests", "N", "Maximum number of requests to measure")
            .value_parser(value_parser!(u64).range(1..)),
        time("warmup", "Duration of the unmeasured warm-up").default_value("0s"),
        time("timeout", "Time to wait for a connection or an answer").default_value("5s"),
    ]
}

fn number(name: &'static str, help: &'static str, default: &'static str) -> Arg {
    value(name, "N", help).default_value(default)
}

/// Parses a duration of at most ten days.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok());
    let wanted = || "expected a duration up to ten days, as in 250ms, 5s or 1m 30s".to_owned();
    parsed.filter(|time| *time <= TIME_MAX).ok_or_else(wanted)
}

/// Parses an exponent of Zipf's law, from 0 to [`SKEW_MAX`].
pub(crate) fn skew(text: &str) -> Result<f64, String> {
    let parsed = text.parse().ok().filter(|skew| (0.0..=SKEW_MAX).contains(skew));
    parsed.ok_or_else(|| format!("expected a number from 0 to {SKEW_MAX}"))
}

/// The minimum and maximum of the hits.
fn hits(text: &str) -> Result<[u32; 2], String> {
    let (min, max) = text.split_once('-').unwrap_or((text, text));
    match (min.parse(), max.parse()) {
        (Ok(min), Ok(max)) if min > 0 && min <= max => Ok([min, max]),
        (Ok(_) | Err(_), _) => Err(format!("expected N or N-M, from 1 to {}", u32::MAX)),
    }
}

/// The run that the flags describe.
pub(super) fn run(matches: &ArgMatches) -> Result<Run, CommandError> {
    let number = |name: &str| matches.get_one::<u64>(name).copied();
    let time = |name: &str| matches.get_one::<Duration>(name).copied();
    let default = "it has a default";
    let seed = number("seed").expect(default);
    let callers = callers(number("connections").expect(default), number("streams").expect(default))
        .map_err(CommandError::Usage)?;
    let requests = number("requests");
    // Without either flag, the run ends after 10 s.
    let duration = time("duration").or(if requests.is_some() { None } else { Some(Duration::from_secs(10)) });
    let request_timeout = time("timeout").expect(default);
    if duration.is_some_and(|duration| duration.is_zero()) || request_timeout.is_zero() {
        return Err(CommandError::Usage("--duration and --timeout must be greater than 0".to_owned()));
    }
    let span = MeasuredSpan { warmup: time("warmup").expect(default), duration, requests };
    let arrivals = if matches.get_flag("poisson") { Arrivals::Poisson } else { Arrivals::Even };
    let schedule = number("rate").map(|rate| Schedule::new(rate, arrivals, span, seed));
    Ok(Run { callers, span, request_timeout, schedule, traffic: content(matches, seed)? })
}

fn callers(connections: u64, streams: u64) -> Result<CallerCount, String> {
    let all = connections.saturating_mul(streams);
    if all > CALLERS_MAX {
        return Err(format!("--connections times --streams is {all}; at most {CALLERS_MAX} are allowed"));
    }
    // Both fit: at most `CALLERS_MAX`.
    Ok(CallerCount { connections: connections as usize, streams: streams as usize })
}

fn content(matches: &ArgMatches, seed: u64) -> Result<BenchTraffic, CommandError> {
    if let Some(file) = matches.get_one::<PathBuf>("calls") {
        let calls = BenchCall::read(file).map_err(|why| format!("--calls: {}: {why}", file.display()))?;
        return Ok(BenchTraffic::Calls { calls, next: 0 });
    }
    let default = "it has a default";
    let keys = *matches.get_one::<u64>("keys").expect(default);
    let skew = *matches.get_one::<f64>("skew").expect(default);
    let [min, max] = *matches.get_one::<[u32; 2]>("hits").expect(default);
    let entries: Vec<_> =
        matches.get_many::<Vec<Entry>>("descriptor").into_iter().flatten().cloned().collect();
    if keys > 1 && !entries.iter().flatten().any(|entry| place_in(&entry.value).is_some()) {
        let why = format!("--keys {keys} needs {PLACEHOLDER} in a value, for the number of the key");
        return Err(CommandError::Usage(why));
    }
    let descriptors =
        entries.into_iter().map(|entries| RateLimitDescriptor { entries, ..Default::default() });
    let domain = matches.get_one::<String>("domain").cloned().unwrap_or_default();
    let request = RateLimitRequest { domain, descriptors: descriptors.collect(), hits_addend: 0 };
    Ok(BenchTraffic::Decisions {
        template: FrameTemplate::new(&request, keys),
        keys: Keys::new(keys, skew, seed)
            .map_err(|error| CommandError::Usage(format!("--skew {skew}: {error}")))?,
        hits: HitDistribution::new(min, max, seed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(flags: &str) -> Result<Run, String> {
        let flags = format!("bench --to 127.0.0.1:1 shop user=u{{}} {flags}");
        let matches = command().try_get_matches_from(flags.split_whitespace());
        run(&matches.map_err(|error| error.to_string())?).map_err(|error| match error {
            CommandError::Usage(why) | CommandError::Failed(why) => why,
        })
    }

    #[test]
    fn default_run_is_one_caller_for_ten_seconds() {
        let run = read("").unwrap();
        assert_eq!((run.callers.connections, run.callers.streams), (1, 1));
        assert_eq!(run.span.end(), Some(Duration::from_secs(10)));
        assert!(run.schedule.is_none());
    }

    #[test]
    fn run_with_requests_only_has_no_time_bound() {
        assert_eq!(read("--requests 5").unwrap().span.end(), None);
        let both = read("--requests 5 --duration 2s --warmup 1s").unwrap().span;
        assert_eq!((both.requests, both.end()), (Some(5), Some(Duration::from_secs(3))));
    }

    #[test]
    fn invalid_flag_is_refused_by_name() {
        for (flags, wrong) in [
            ("--keys 0", "--keys"),
            ("--skew 21", "--skew"),
            ("--skew nan", "--skew"),
            ("--hits 0", "--hits"),
            ("--hits 5-2", "--hits"),
            ("--rate 0", "--rate"),
            ("--poisson", "--rate"),
            ("--duration 0s", "--duration"),
            ("--duration soon", "--duration"),
            ("--timeout 0s", "--timeout"),
            ("--requests 0", "--requests"),
            ("--calls calls.json", "--calls"),
            ("--connections 1000 --streams 1000", "--connections times --streams is 1000000"),
        ] {
            let error = read(flags).err().unwrap_or_else(|| panic!("{flags} is accepted"));
            assert!(error.contains(wrong), "{flags}: {error}");
        }
    }

    #[test]
    fn several_keys_need_a_placeholder() {
        let flags = ["bench", "--to", "127.0.0.1:1", "shop", "user=ann", "--keys", "2"];
        let matches = command().try_get_matches_from(flags).unwrap();
        let error = run(&matches).err().unwrap();
        assert!(matches!(&error, CommandError::Usage(why) if why.contains("--keys 2 needs {} in a value")));
    }
}
