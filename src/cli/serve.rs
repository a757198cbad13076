//! `tollgate serve`: runs the service.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
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
use tracing::{error, info};

use crate::{
    server::{Server, WorkerPool},
    settings::{Address, CATALOG, Settings, Sources, Tls, environment},
    telemetry::logs,
    time::{Clock, Stopwatch},
};

/// The time that blocking calls may take after the service has ended.
const SHUTDOWN_MAX: Duration = Duration::from_secs(1);
/// The time that the last log lines may take.
const FLUSH_MAX: Duration = Duration::from_secs(1);

pub(super) fn command() -> Command {
    let file =
        Arg::new("settings").long("settings").value_name("FILE").value_hint(ValueHint::FilePath).help(
            "A YAML file of settings; the environment (TOLLGATE_<SECTION>__<NAME>) and flags overrule it",
        );
    let flags = CATALOG.iter().map(|setting| {
        let default = setting.default.map(|default| format!(" [default: {default}]")).unwrap_or_default();
        Arg::new(setting.name)
            .long(setting.flag())
            .value_name(setting.shape.value_name())
            .action(if setting.shape.is_list() { ArgAction::Append } else { ArgAction::Set })
            .help(format!("{}{default}", setting.help))
    });
    Command::new("serve").about("Runs the service").arg(file).args(flags)
}

pub(super) fn run(matches: &ArgMatches) -> ExitCode {
    let settings = match sources(matches).load() {
        Ok(settings) => settings,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let running = Stopwatch::start();
    let dial = match logs::start(&settings.log, move || running.elapsed().as_secs()) {
        Ok(dial) => dial,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    log_panics(dial.clone());
    // Connections have threads of their own; the rest needs little.
    let served = match runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let served = runtime.block_on(serve(settings, dial.clone()));
            // A blocking call that hangs, such as a read from a disk that is gone, must not keep the process.
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
    dial.flush(FLUSH_MAX);
    code
}

/// Has panics logged, and written before the thread goes on: the usual hook would wait for standard error.
fn log_panics(dial: logs::Dial) {
    std::panic::set_hook(Box::new(move |panic| {
        let backtrace = Backtrace::capture();
        let backtrace = (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
        error!(panic = panic.to_string(), backtrace, "a thread has panicked");
        dial.flush(FLUSH_MAX);
    }));
}

fn sources(matches: &ArgMatches) -> Sources {
    // Those that may come several times are lists.
    let flag = |name: &str| {
        let values: Vec<&str> = matches.get_many::<String>(name)?.map(String::as_str).collect();
        Some(values.join(","))
    };
    Sources {
        file: flag("settings").map(Into::into),
        environment: environment(),
        flags: CATALOG.iter().filter_map(|setting| Some((setting, flag(setting.name)?))).collect(),
    }
}

async fn serve(settings: Settings, dial: logs::Dial) -> Result<(), Box<dyn std::error::Error>> {
    let (tell, leave) = mpsc::channel(2);
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    // Owned here, so that it ends with the service.
    let mut signals = JoinSet::new();
    signals.spawn(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            if tell.send(()).await.is_err() {
                return;
            }
        }
    });
    let flags = flags_to_ask(settings.grpc.tls.as_ref());
    let server =
        Server::bind(settings, Clock::system()).await?.with_logs(dial).with_workers(WorkerPool::per_core()?);
    let addresses = server.addresses()?;
    info!(listener = "grpc", address = %addresses.grpc, "listening");
    info!(listener = "http", address = %addresses.http, "listening");
    info!(listener = "admin", address = %addresses.admin, "listening");
    info!(listener = "metrics", address = %addresses.metrics, "listening");
    let to = callable(addresses.grpc);
    info!(command = format!("tollgate ask --to {to}{flags} DOMAIN key=value"), "to try it");
    server.run(leave).await?;
    Ok(())
}

/// An address that a client on this machine can connect to: the loopback if the server listens on all addresses.
fn callable(address: Address) -> Address {
    match address {
        Address::Tcp(mut tcp) if tcp.ip().is_unspecified() => {
            let loopback =
                if tcp.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
            tcp.set_ip(loopback);
            Address::Tcp(tcp)
        }
        address @ (Address::Tcp(_) | Address::Unix(_)) => address,
    }
}

/// What a caller has to bring where TLS is spoken.
fn flags_to_ask(tls: Option<&Tls>) -> &'static str {
    match tls {
        None => "",
        Some(Tls { client_ca: None, .. }) => " --tls-ca FILE",
        Some(Tls { client_ca: Some(_), .. }) => " --tls-ca FILE --tls-cert FILE --tls-key FILE",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_of_a_list_may_come_several_times_and_no_other() {
        let read = |arguments: &[&str]| command().try_get_matches_from(arguments);
        let given =
            ["serve", "--cluster-seed", "a:1,b:2", "--cluster-seed", "c:3", "--grpc-listen", "[::]:1"];
        let flags = sources(&read(&given).unwrap()).flags;
        let flags: Vec<_> = flags.iter().map(|(setting, value)| (setting.name, value.as_str())).collect();
        assert_eq!(flags, [("grpc.listen", "[::]:1"), ("cluster.seed", "a:1,b:2,c:3")]);
        assert!(read(&["serve", "--grpc-listen", "[::]:1", "--grpc-listen", "[::]:2"]).is_err());
    }

    #[test]
    fn command_to_try_names_an_address_that_can_be_called() {
        for (listen, to) in [
            ("0.0.0.0:8081", "127.0.0.1:8081"),
            ("[::]:8081", "[::1]:8081"),
            ("10.1.2.3:8081", "10.1.2.3:8081"),
            ("unix:/run/tollgate.sock", "unix:/run/tollgate.sock"),
        ] {
            assert_eq!(callable(listen.parse().unwrap()).to_string(), to);
        }
    }

    #[test]
    fn the_command_to_try_it_names_what_tls_takes() {
        let tls = |client_ca: Option<&str>| {
            let client_ca = client_ca.map(Into::into);
            Tls { cert: "cert".into(), key: "key".into(), client_ca, client_san: Vec::new() }
        };
        assert_eq!(flags_to_ask(None), "");
        assert_eq!(flags_to_ask(Some(&tls(None))), " --tls-ca FILE");
        assert_eq!(flags_to_ask(Some(&tls(Some("ca")))), " --tls-ca FILE --tls-cert FILE --tls-key FILE");
    }
}
