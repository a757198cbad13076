//! The flags of `tollgate simulate`.

use std::{path::PathBuf, time::Duration};

use bytesize::ByteSize;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, value_parser};
use tollgate_counter::named;
use tollgate_rules::Rules;
use tollgate_wire::{
    descriptor_template::DescriptorTemplate,
    proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry,
};

use crate::{
    bench::{
        flags::{RATE_MAX, duration, skew},
        keys::{KEYS_MAX, Keys},
        schedule::{Arrivals, MeasuredSpan, Schedule},
    },
    command::{examples, flag, one_of, path, value},
    request,
    simulate::{
        envoys,
        generator::{GeneratorTerms, RetryPolicy},
        input::{RecordContent, RecordedTerms, instant, record::FormatName},
        shape::Shape,
        suggest::{Goal, ShareOf},
    },
};

/// The maximum number of retries of a request.
const RETRIES_MAX: i64 = 1_000;
/// The maximum factor of bursts.
const FACTOR_MAX: f64 = 1e6;

named! {
    /// The arrivals of generated requests.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Generator {
        /// Arrivals at equal intervals.
        Constant = "constant",
        /// Arrivals that are independent of each other.
        Poisson = "poisson",
        /// Poisson arrivals in bursts.
        Bursts = "bursts",
        /// Poisson arrivals by day and night.
        Daily = "daily",
    }
}

/// What is simulated.
#[derive(Debug)]
pub(super) struct Flags {
    pub(super) rules: PathBuf,
    pub(super) compare: Option<PathBuf>,
    pub(super) traffic: TrafficFlags,
    pub(super) goal: Option<Goal>,
    pub(super) memory_limit: u64,
    pub(super) users_max: usize,
    pub(super) top: usize,
    pub(super) decisions: Option<PathBuf>,
    pub(super) json: bool,
}

/// Where the traffic comes from.
#[derive(Debug)]
pub(super) enum TrafficFlags {
    Recorded(Box<RecordedTerms>),
    Generated(Box<GeneratorTerms>),
}

/// The command `simulate`.
pub(crate) fn command() -> Command {
    Command::new("simulate")
        // clap would write the group before the rules.
        .override_usage("tollgate simulate [OPTIONS] <RULES> <INPUT|--generate <ARRIVALS>|--envoys <DEMANDS>>")
        .about("Replay recorded or generated traffic against rules, without a server, and report what would be refused")
        .after_help(examples(&[
            "tollgate simulate rules.yaml access.log --descriptor 'remote_address={x_forwarded_for|last}' --suggest 99%",
            "tollgate simulate rules.yaml --generate bursts --descriptor 'user={key}' --keys 1000",
            "tollgate simulate rules.yaml --envoys 150,60,5x10 --descriptor tenant=acme --duration 5m",
        ]))
        .arg(path("rules", "RULES", "Rule file, or directory of rule files").required(true))
        .arg(path("input", "INPUT", "Recorded traffic; - reads the standard input, as behind zcat"))
        .next_help_heading("Requests")
        .args(requests())
        .next_help_heading("Recorded traffic")
        .args(recorded())
        .next_help_heading("Generated traffic")
        .args(generated())
        .args(shapes())
        .next_help_heading("Envoys with quotas")
        .arg(
            value("envoys", "DEMANDS", "Divide a limit over Envoys with so many requests a second each, as the rate limit quota service does; --descriptor is their bucket, or one for each")
                .value_delimiter(',')
                .value_parser(envoys::demand)
                .conflicts_with_all(["compare", "suggest", "decisions"]),
        )
        .next_help_heading("Comparison and suggestions")
        .args(questions())
        .next_help_heading("Report")
        .args(output())
        .group(ArgGroup::new("traffic").args(["input", "generate", "envoys"]).required(true))
}

/// The flags for the requests of any traffic.
fn requests() -> [Arg; 2] {
    [
        request::descriptor().required(false).long("descriptor").action(ArgAction::Append).help(
            "Descriptor of each request, may be repeated; {field} in a value is a field of the line, {field|filter} a part of it",
        ),
        value("domain", "NAME", "Domain of requests that name none [default: the domain of the rules, if there is one]"),
    ]
}

/// The flags for recorded traffic.
fn recorded() -> [Arg; 6] {
    [
        value("format", "FORMAT", "Format of the input [default: found by the first line]")
            .value_parser(one_of!(FormatName)),
        value("columns", "NAMES", "Columns of CSV without a header")
            .value_delimiter(',')
            .conflicts_with("generate"),
        value("time", "FIELD", "Field of the time [default: time, timestamp, start_time, @timestamp or ts]"),
        value("hits", "FIELD", "Field of the number of hits [default: hits; 1 if there is none]"),
        flag("from-denials", "The input is the log of the service in JSON; its denials are the requests")
            .conflicts_with_all(["descriptor", "time", "hits", "columns", "generate"]),
        flag("strict", "Stop at the first line that cannot be read"),
    ]
}

/// The flags for generated traffic.
fn generated() -> [Arg; 10] {
    let number = |name, help, default| value(name, "N", help).default_value(default);
    let time = |name, help, default| value(name, "TIME", help).default_value(default).value_parser(duration);
    [
        value("generate", "ARRIVALS", "Generate traffic with such arrivals; the field of its key is {key}")
            .value_parser(one_of!(Generator)),
        number("rate", "Mean number of generated requests a second", "10")
            .value_parser(value_parser!(u64).range(1..=RATE_MAX)),
        time("duration", "Time that generated traffic covers", "1h"),
        number("keys", "Number of keys", "100").value_parser(value_parser!(u64).range(1..=KEYS_MAX)),
        value(
            "skew",
            "S",
            "Exponent of Zipf's law, by which lower keys are more frequent; 0 uses all keys in turn",
        )
        .default_value("0")
        .value_parser(skew),
        number("seed", "Random seed: the same seed generates the same traffic", "1")
            .value_parser(value_parser!(u64)),
        value("start", "INSTANT", "Instant at which generated traffic begins")
            .default_value("2026-01-01T00:00:00Z")
            .value_parser(|text: &str| {
                instant::parse(text).ok_or("expected an instant such as 2026-01-01T00:00:00Z")
            }),
        value("attack-rate", "N", "Add requests with the key `attacker`, so many a second")
            .value_parser(value_parser!(u64).range(1..=RATE_MAX)),
        number("retries", "Maximum number of retries of a refused request", "0")
            .value_parser(value_parser!(u32).range(0..=RETRIES_MAX)),
        value("retry-wait", "TIME", "Time to wait before a retry [default: the time that the refusal says]")
            .value_parser(duration),
    ]
}

/// The flags for the shape of generated traffic.
fn shapes() -> [Arg; 4] {
    let time = |name, help, default| value(name, "TIME", help).default_value(default).value_parser(duration);
    [
        time("burst-every", "Interval of bursts", "1m"),
        time("burst-length", "Length of a burst", "5s"),
        value("burst-factor", "N", "How many times as high the rate is in a burst")
            .default_value("10")
            .value_parser(|text: &str| within(text, 1.0, FACTOR_MAX)),
        value("amplitude", "SHARE", "Amplitude of the daily curve; with 1 there are no requests at midnight")
            .default_value("0.8")
            .value_parser(|text: &str| within(text, 0.0, 1.0)),
    ]
}

/// The flags for what is compared or searched.
fn questions() -> [Arg; 3] {
    [
        path("compare", "RULES", "Decide by these rules too, and report the differences").long("compare"),
        value(
            "suggest",
            "SHARE",
            "Search the smallest limits under which such a share is never refused, as in 99.9%",
        )
        .value_parser(percent),
        value("suggest-by", "WHAT", "What the share is a share of")
            .default_value("users")
            .value_parser(one_of!(ShareOf)),
    ]
}

/// The flags for the report and its bounds.
fn output() -> [Arg; 5] {
    [
        value("top", "N", "Number of users in each list")
            .default_value("10")
            .value_parser(value_parser!(u16)),
        path("decisions", "FILE", "Write the decision on each request, a line of JSON each")
            .long("decisions"),
        flag("json", "Print the report as JSON"),
        value("memory-limit", "SIZE", "Maximum memory for counters, as store.memory_limit of a server")
            .default_value("1GiB")
            .value_parser(|text: &str| text.parse::<ByteSize>()),
        value("users-max", "N", "Maximum number of users in the statistics, about 40 bytes each")
            .default_value("2000000")
            .value_parser(value_parser!(u32)),
    ]
}

fn within(text: &str, min: f64, max: f64) -> Result<f64, String> {
    let parsed = text.parse().ok().filter(|number| (min..=max).contains(number));
    parsed.ok_or_else(|| format!("expected a number from {min} to {max}"))
}

/// A share in percent, as a number from 0 to 1.
fn percent(text: &str) -> Result<f64, String> {
    let wanted = || "expected a share above 0% and up to 100%, as in 99.9%".to_owned();
    let number: f64 = text.strip_suffix('%').unwrap_or(text).trim().parse().map_err(|_| wanted())?;
    if number > 0.0 && number <= 100.0 { Ok(number / 100.0) } else { Err(wanted()) }
}

/// The simulation that the flags describe.
pub(super) fn read(matches: &ArgMatches, rules: &Rules) -> Result<Flags, String> {
    let path = |name: &str| matches.get_one::<PathBuf>(name).cloned();
    let default = "it has a default";
    let share = matches.get_one::<f64>("suggest").copied();
    let of = *matches.get_one::<ShareOf>("suggest-by").expect(default);
    Ok(Flags {
        rules: path("rules").expect("clap requires it"),
        compare: path("compare"),
        traffic: traffic(matches, rules)?,
        goal: share.map(|share| Goal { share, of }),
        memory_limit: matches.get_one::<ByteSize>("memory-limit").expect(default).as_u64(),
        users_max: *matches.get_one::<u32>("users-max").expect(default) as usize,
        top: usize::from(*matches.get_one::<u16>("top").expect(default)),
        decisions: path("decisions"),
        json: matches.get_flag("json"),
    })
}

/// The domain that is given, or that of the rules, if there is one.
pub(super) fn domain(matches: &ArgMatches, rules: &Rules) -> Option<String> {
    let mut domains = rules.domains().map(|domain| &*domain.name);
    let only = domains.next().filter(|_| domains.next().is_none());
    matches.get_one("domain").map(String::as_str).or(only).map(str::to_owned)
}

fn traffic(matches: &ArgMatches, rules: &Rules) -> Result<TrafficFlags, String> {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let domain = domain(matches, rules);
    let descriptors = matches.get_many::<Vec<Entry>>("descriptor");
    let template = descriptors.map(DescriptorTemplate::new).transpose()?;
    match matches.get_one::<Generator>("generate") {
        Some(generator) => {
            let domain =
                domain.ok_or("the rules have several domains: --domain names that of the requests")?;
            let template = template.ok_or("--generate needs --descriptor, as in user={key}")?;
            if let Some(field) = template.fields().find(|field| field.name != GeneratorTerms::FIELD) {
                return Err(format!(
                    "generated requests have no field `{}`; they have `{}`",
                    field.name,
                    GeneratorTerms::FIELD
                ));
            }
            Ok(TrafficFlags::Generated(Box::new(terms(matches, *generator, domain, template)?)))
        }
        None => Ok(TrafficFlags::Recorded(Box::new(RecordedTerms {
            path: matches.get_one::<PathBuf>("input").cloned().expect("clap requires one of them"),
            format: matches.get_one::<FormatName>("format").copied(),
            columns: matches.get_many::<String>("columns").map(|names| names.cloned().collect()),
            domain,
            content: match template {
                None if matches.get_flag("from-denials") => RecordContent::Denials,
                None => RecordContent::Requests,
                Some(template) => RecordContent::Fields(template),
            },
            time_field: text("time"),
            hits_field: text("hits"),
            is_strict: matches.get_flag("strict"),
        }))),
    }
}

fn terms(
    matches: &ArgMatches,
    generator: Generator,
    domain: String,
    template: DescriptorTemplate,
) -> Result<GeneratorTerms, String> {
    let default = "it has a default";
    let number = |name: &str| matches.get_one::<u64>(name).copied();
    let time = |name: &str| *matches.get_one::<Duration>(name).expect(default);
    let rate = number("rate").expect(default);
    let seed = number("seed").expect(default);
    let span = MeasuredSpan { warmup: Duration::ZERO, duration: Some(time("duration")), requests: None };
    let shape = match generator {
        Generator::Constant | Generator::Poisson => Shape::Flat,
        Generator::Daily => Shape::Daily { amplitude: *matches.get_one::<f64>("amplitude").expect(default) },
        Generator::Bursts => Shape::Bursts {
            every: time("burst-every"),
            length: time("burst-length"),
            factor: *matches.get_one::<f64>("burst-factor").expect(default),
        },
    };
    if let Shape::Bursts { every, length, .. } = shape
        && (length >= every || length.is_zero())
    {
        return Err("--burst-length must be greater than 0 and less than --burst-every".to_owned());
    }
    let arrivals = if generator == Generator::Constant { Arrivals::Even } else { Arrivals::Poisson };
    let skew = *matches.get_one::<f64>("skew").expect(default);
    let keys = Keys::new(number("keys").expect(default), skew, seed);
    let max = *matches.get_one::<u32>("retries").expect(default);
    let wait = matches.get_one::<Duration>("retry-wait").copied();
    Ok(GeneratorTerms {
        start: *matches.get_one("start").expect(default),
        domain,
        template,
        arrivals: Schedule::new(rate, arrivals, span, seed),
        shape,
        keys: keys.map_err(|error| format!("--skew {skew}: {error}"))?,
        // Another seed, so that the attacker does not arrive together with the users.
        attack: number("attack-rate")
            .map(|rate| Schedule::new(rate, Arrivals::Poisson, span, seed.wrapping_add(1))),
        retry: (max > 0).then_some(RetryPolicy { max, wait }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str =
        "domain: shop\ndescriptors:\n- {key: user, rate_limit: {unit: second, requests_per_unit: 1}}\n";

    fn read_flags(flags: &str) -> Result<Flags, String> {
        let flags = format!("simulate rules.yaml {flags}");
        let matches = command().try_get_matches_from(flags.split_whitespace());
        read(&matches.map_err(|error| error.to_string())?, &Rules::parse("rules.yaml", RULES).unwrap())
    }

    #[test]
    fn invalid_flag_is_refused_by_name() {
        for (flags, wrong) in [
            ("", "<INPUT|--generate <ARRIVALS>|--envoys <DEMANDS>>"),
            ("log --generate poisson", "--generate"),
            ("log --envoys 5", "--envoys"),
            ("--envoys 5x0", "--envoys"),
            ("--envoys fast", "--envoys"),
            ("--envoys 5 --suggest 99%", "--suggest"),
            ("log --format xml", "--format"),
            ("log --descriptor user", "key=value"),
            ("log --descriptor user={f|upper}", "`upper` is no filter"),
            ("log --suggest 0%", "--suggest"),
            ("log --suggest 101", "--suggest"),
            ("log --suggest-by keys", "--suggest-by"),
            ("log --memory-limit much", "--memory-limit"),
            ("--generate zipf", "--generate"),
            ("--generate poisson", "--descriptor"),
            ("--generate poisson --descriptor user={ip}", "no field `ip`"),
            ("--generate poisson --descriptor user={key} --rate 0", "--rate"),
            ("--generate poisson --descriptor user={key} --start soon", "--start"),
            ("--generate bursts --descriptor user={key} --burst-length 2m", "--burst-length"),
            ("--generate daily --descriptor user={key} --amplitude 2", "--amplitude"),
        ] {
            let error = read_flags(flags).err().unwrap_or_else(|| panic!("{flags} is accepted"));
            assert!(error.contains(wrong), "{flags}: {error}");
        }
    }

    #[test]
    fn help_has_every_flag_in_a_group() {
        let help = command().render_help().to_string();
        let (_, groups) = help.split_once("\nRequests:\n").unwrap();
        let (groups, _) = groups.split_once("\nOptions:\n").unwrap_or((groups, ""));
        for flag in command().get_arguments().filter_map(|argument| argument.get_long()) {
            assert!(groups.contains(&format!("--{flag}")), "{flag} is not in\n{help}");
        }
    }

    #[test]
    fn share_is_read_in_percent() {
        for (text, share) in [("99.9%", 0.999), ("100", 1.0), ("50 %", 0.5)] {
            let found = percent(text).unwrap();
            assert!((found - share).abs() < 1e-12, "{text}: {found}");
        }
    }
}
