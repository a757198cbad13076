//! `tollgate serve`: runs the service.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    ffi::OsString,
    net::{Ipv4Addr, Ipv6Addr},
    process::ExitCode,
    time::Duration,
};

use clap::{Arg, ArgAction, ArgMatches, Command, ValueHint};
use tokio::{
    runtime,
    signal::unix::{SignalKind, signal},
    sync::mpsc,
    task::JoinSet,
};
use tollgate_counter::time::{Clock, Stopwatch};
use tollgate_telemetry::logs;
use tollgate_tools::{USAGE, examples};
use tracing::{error, info, warn};

use crate::{
    server::{bind::Server, shutdown::StopSignal, tasks::ServiceError, workers::WorkerPool},
    settings::{
        CATALOG, Settings,
        listeners::{ListenAddress, ListenerTlsFiles},
        reference::BackendChoice,
        sources::{SettingsSources, environment},
    },
};

/// The time for blocking calls to return after the service has ended.
const SHUTDOWN_MAX: Duration = Duration::from_secs(1);
/// The time to write the last log lines.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// The flag for a server in whose place this program starts, and its value.
pub(super) const COMPAT: &str = "compat";
pub(super) const ENVOY_RATELIMIT: &str = "envoy-ratelimit";
/// The name of the command.
pub(super) const NAME: &str = "serve";
/// The settings that the short help shows, and the long one first, with the settings file. All others are below the
/// headings of the catalog.
const MOST_USED: [&str; 11] = [
    "rules.path",
    "grpc.listen",
    "http.listen",
    "admin.listen",
    "metrics.listen",
    "store.kind",
    "store.redis.urls",
    "cluster.listen",
    "cluster.seed",
    "cluster.secret_file",
    "log.level",
];
const EXAMPLES: [&str; 4] = [
    "tollgate serve --rules rules.yaml",
    "tollgate serve --rules rules/ --settings tollgate.yaml --log-level info",
    "tollgate serve --rules rules.yaml --cluster-listen 10.0.0.7:8082 \\\n      \
     --cluster-seed tollgate-peers:8082 --cluster-secret-file secret",
    "tollgate serve --rules rules.yaml --store-kind redis --store-redis-urls redis://redis:6379",
];
/// Arguments without effect, after `--`.
const IGNORED: &str = "ignored";

pub(super) fn command() -> Command {
    let file = Arg::new("settings").long("settings").value_name("FILE").value_hint(ValueHint::FilePath).help(
        "YAML file of settings; environment variables (TOLLGATE_<SECTION>__<NAME>) and flags override it",
    );
    let flags = CATALOG.iter().map(|setting| {
        let value_type = setting.value_type();
        let flag = Arg::new(setting.name)
            .long(setting.flag())
            .value_name(value_type.value_name)
            .action(if value_type.is_list { ArgAction::Append } else { ArgAction::Set })
            .help(format!("{} [default: {}]", setting.help, setting.default));
        if MOST_USED.contains(&setting.name) {
            flag
        } else {
            flag.help_heading(setting.heading).hide_short_help(true)
        }
    });
    let compat = Arg::new(COMPAT)
        .long(COMPAT)
        .value_name("SERVER")
        .value_parser([ENVOY_RATELIMIT])
        .help_heading("In the place of another server")
        .help("Also read the environment variables of this server; the default if the program is called `ratelimit`");
    let ignored = Arg::new(IGNORED).num_args(0..).last(true).requires(COMPAT).hide(true);
    Command::new(NAME)
        .about("Run the service")
        .after_help(examples(&EXAMPLES))
        .arg(file)
        .args(flags)
        .arg(compat)
        .arg(ignored)
}

/// Moves arguments that this command does not know behind `--` if it starts in the place of envoyproxy/ratelimit: that
/// program reads no arguments, so gateways may give it any.
pub(super) fn set_aside_unknown(arguments: Vec<OsString>) -> Vec<OsString> {
    let name = |argument: &OsString| {
        let text = argument.to_string_lossy().into_owned();
        text.split_once('=').map_or((text.clone(), false), |(name, _)| (name.to_owned(), true))
    };
    if !arguments.iter().any(|argument| name(argument).0.strip_prefix("--") == Some(COMPAT)) {
        return arguments;
    }
    let mut command = command();
    command.build();
    let takes_value = |name: &str| {
        let long = name.strip_prefix("--")?;
        let flag = command.get_arguments().find(|flag| flag.get_long() == Some(long))?;
        Some(flag.get_action().takes_values())
    };
    let mut known = Vec::new();
    let mut unknown = Vec::new();
    let mut arguments = arguments.into_iter();
    known.extend(arguments.by_ref().take(2));
    while let Some(argument) = arguments.next() {
        let (name, has_value) = name(&argument);
        match takes_value(&name) {
            Some(takes_value) => {
                known.push(argument);
                if takes_value && !has_value {
                    known.extend(arguments.next());
                }
            }
            None if name == "-h" => known.push(argument),
            None => unknown.push(argument),
        }
    }
    if !unknown.is_empty() {
        known.push("--".into());
        known.append(&mut unknown);
    }
    known
}

pub(super) fn run(matches: &ArgMatches) -> ExitCode {
    let settings = match sources(matches).load() {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(USAGE);
        }
    };
    let running = Stopwatch::start();
    let log_control = match logs::start(&settings.sections.log, move || running.elapsed().as_secs()) {
        Ok(log_control) => log_control,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    log_panics(log_control.clone());
    if let Some(ignored) = matches.get_many::<String>(IGNORED) {
        let arguments = ignored.map(String::as_str).collect::<Vec<_>>().join(" ");
        warn!(arguments, "some arguments have no effect; envoyproxy/ratelimit reads none");
    }
    // Connections run on the workers; everything else fits on one thread.
    let served = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let served = runtime.block_on(serve(settings, log_control.clone()));
            // A blocking call that hangs, such as a read from a failed disk, must not keep the process alive.
            runtime.shutdown_timeout(SHUTDOWN_MAX);
            served
        }
        Err(error) => Err(error.into()),
    };
    let code = match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!(%error, "cannot serve");
            ExitCode::FAILURE
        }
    };
    log_control.flush(FLUSH_MAX);
    code
}

/// Logs panics, and writes them before the thread continues. The default hook would block on standard error.
fn log_panics(log_control: logs::LogControl) {
    std::panic::set_hook(Box::new(move |panic| {
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
        error!(panic = panic.to_string(), backtrace, "thread panicked");
        log_control.flush(FLUSH_MAX);
    }));
}

fn sources(matches: &ArgMatches) -> SettingsSources {
    // Flags that may be repeated are lists.
    let flag = |name: &str| {
        let values: Vec<&str> = matches.get_many::<String>(name)?.map(String::as_str).collect();
        Some(values.join(","))
    };
    SettingsSources {
        file: flag("settings").map(Into::into),
        environment: environment(),
        reads_reference: matches.contains_id(COMPAT),
        flags: CATALOG.iter().filter_map(|setting| Some((setting, flag(setting.name)?))).collect(),
    }
}

async fn serve(settings: Settings, log_control: logs::LogControl) -> Result<(), ServiceError> {
    let (sender, shutdown) = mpsc::channel(2);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // Owned here, so that the task ends with the service.
    let mut signals = JoinSet::new();
    signals.spawn(async move {
        loop {
            let signal = tokio::select! {
                _ = terminate.recv() => StopSignal::Terminate,
                _ = interrupt.recv() => StopSignal::Interrupt,
            };
            if sender.send(signal).await.is_err() {
                return;
            }
        }
    });
    if let Some(BackendChoice { backend, reason }) = &settings.backend {
        info!(store = backend.name(), reason, "chose the store of the counters");
    }
    if !settings.without_effect.is_empty() {
        let variables = settings.without_effect.join(", ");
        warn!(variables, "some variables of envoyproxy/ratelimit have no effect");
    }
    let flags = flags_to_ask(settings.grpc_tls.as_ref());
    let server = Server::bind(settings, Clock::system())
        .await?
        .with_logs(log_control)
        .with_workers(WorkerPool::per_core()?);
    let addresses = server.addresses()?;
    info!(listener = "grpc", address = %addresses.grpc, "listening");
    info!(listener = "http", address = %addresses.http, "listening");
    info!(listener = "admin", address = %addresses.admin, "listening");
    info!(listener = "metrics", address = %addresses.metrics, "listening");
    let to = callable(addresses.grpc);
    info!(command = format!("tollgate ask --to {to}{flags} DOMAIN key=value"), "example request");
    server.run(shutdown).await
}

/// An address that a client on this machine can connect to: the loopback if the server listens on all addresses.
fn callable(address: ListenAddress) -> ListenAddress {
    match address {
        ListenAddress::Tcp(mut tcp) if tcp.ip().is_unspecified() => {
            let loopback =
                if tcp.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
            tcp.set_ip(loopback);
            ListenAddress::Tcp(tcp)
        }
        address @ (ListenAddress::Tcp(_) | ListenAddress::Unix(_)) => address,
    }
}

/// The flags of `ask` that a caller needs if the listener uses TLS.
fn flags_to_ask(tls: Option<&ListenerTlsFiles>) -> &'static str {
    match tls {
        None => "",
        Some(ListenerTlsFiles { client_ca: None, .. }) => " --tls-ca FILE",
        Some(ListenerTlsFiles { client_ca: Some(_), .. }) => " --tls-ca FILE --tls-cert FILE --tls-key FILE",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_flags_of_lists_may_be_repeated() {
        let read = |arguments: &[&str]| command().try_get_matches_from(arguments);
        let given =
            ["serve", "--cluster-seed", "a:1,b:2", "--cluster-seed", "c:3", "--grpc-listen", "[::]:1"];
        let flags = sources(&read(&given).unwrap()).flags;
        let flags: Vec<_> = flags.iter().map(|(setting, value)| (setting.name, value.as_str())).collect();
        assert_eq!(flags, [("grpc.listen", "[::]:1"), ("cluster.seed", "a:1,b:2,c:3")]);
        assert!(read(&["serve", "--grpc-listen", "[::]:1", "--grpc-listen", "[::]:2"]).is_err());
    }

    #[test]
    fn examples_in_help_are_valid_settings() {
        for words in tollgate_tools::examples_of(&command()) {
            let given = sources(&command().get_matches_from(&words[1..]));
            // The settings file is that of an operator.
            let loaded = SettingsSources { file: None, environment: Vec::new(), ..given }.load();
            assert!(loaded.is_ok(), "{words:?}: {loaded:?}");
        }
    }

    #[test]
    fn short_help_shows_thirteen_flags_and_long_help_all_below_headings() {
        let short = command().render_help().to_string();
        let flags = |help: &str| {
            let (flags, _examples) = help.split_once("Examples:").unwrap();
            flags.lines().filter(|line| line.trim_start().starts_with("--")).count()
        };
        assert_eq!(flags(&short), 13, "{short}");
        for flag in ["--admin-listen", "--metrics-listen", "--compat"] {
            assert!(short.contains(flag), "{short}");
        }
        let long = command().render_long_help().to_string();
        assert_eq!(flags(&long), CATALOG.len() + 2, "{long}");
        let (most_used, _) = long.split_once("\nRules:\n").unwrap();
        assert_eq!(flags(&format!("{most_used}Examples:")), 12, "{most_used}");
        for setting in CATALOG {
            assert!(long.contains(&format!("\n{}:\n", setting.heading)), "{}", setting.name);
        }
    }

    #[test]
    fn example_request_names_a_callable_address() {
        for (listen, to) in [
            ("0.0.0.0:8081", "127.0.0.1:8081"),
            ("[::]:8081", "[::1]:8081"),
            ("10.1.2.3:8081", "10.1.2.3:8081"),
            ("unix:/run/tollgate.sock", "unix:/run/tollgate.sock"),
        ] {
            assert_eq!(callable(listen.to_owned().try_into().unwrap()).to_string(), to);
        }
    }

    #[test]
    fn example_request_has_the_flags_for_tls() {
        let tls = |client_ca: Option<&str>| {
            let client_ca = client_ca.map(Into::into);
            ListenerTlsFiles {
                cert: "cert".into(),
                key: "key".into(),
                client_ca,
                client_san: Vec::new(),
                limits_san: Vec::new(),
            }
        };
        assert_eq!(flags_to_ask(None), "");
        assert_eq!(flags_to_ask(Some(&tls(None))), " --tls-ca FILE");
        assert_eq!(flags_to_ask(Some(&tls(Some("ca")))), " --tls-ca FILE --tls-cert FILE --tls-key FILE");
    }
}
