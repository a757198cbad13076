//! `tollgate bench`: generates load on a rate limit server, Tollgate or another, in a closed or an open loop.

use std::{process::ExitCode, time::Duration};

use clap::ArgMatches;

use crate::{
    bench::report::BenchReport,
    command::{CommandError, Interrupts, block_on, with_progress},
    target,
};

mod client;
pub(super) mod flags;
mod frame;
pub(super) mod keys;
mod report;
mod run;
pub(super) mod schedule;
mod stats;

pub(super) fn run(matches: &ArgMatches) -> Result<(String, ExitCode), CommandError> {
    let run = flags::run(matches)?;
    let target = target::from_matches(matches)?;
    let to = target.to.clone();
    let measured = block_on(async {
        let route = client::Route::new(target, run.request_timeout)?;
        measure(run, route).await
    });
    let report = measured.map_err(|why| format!("no answer from {to}: {why}"))?;
    let text = if matches.get_flag("json") { report.json().to_string() } else { report.text() };
    Ok((text, if report.answered() { ExitCode::SUCCESS } else { ExitCode::FAILURE }))
}

/// Runs to the end, or until a signal arrives.
async fn measure(run: run::Run, route: client::Route) -> Result<BenchReport, String> {
    let mut interrupts = Interrupts::new()?;
    let mut running = tokio::select! {
        running = run.start(route) => running?,
        () = interrupts.next() => return Err("interrupted".to_owned()),
    };
    let state = running.state.clone();
    let line = || BenchReport::new(&state).line();
    with_progress(running.ended(), &mut interrupts, Duration::from_secs(1), line).await;
    Ok(BenchReport::new(&state))
}
