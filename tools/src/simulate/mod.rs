//! `tollgate simulate`: replays traffic against rules, without a server.

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use clap::ArgMatches;
use tokio::{task, time::Instant};
use tollgate_rules::Rules;

use crate::{
    command::{CommandError, Interrupts, block_on, with_progress},
    simulate::{
        decisions::DecisionsFile,
        engine::{Refusals, Replay, RuleTable, Side},
        event::Source,
        flags::{Flags, TrafficFlags},
        generator::Generated,
        input::{Recorded, file},
        progress::Progress,
        report::{SimulationReport, rules_at},
        suggest::{Goal, Suggestion, suggest},
    },
};

mod decisions;
mod engine;
mod envoys;
mod event;
pub(super) mod flags;
mod generator;
mod input;
mod progress;
mod report;
mod shape;
mod stats;
mod suggest;
mod table;

/// How often the progress is printed.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(500);

pub(super) fn run(matches: &ArgMatches) -> Result<(String, ExitCode), CommandError> {
    let rules = load(matches.get_one::<PathBuf>("rules").expect("clap requires it"))?;
    if matches.contains_id("envoys") {
        let several = "the rules have several domains: --domain names that of the buckets";
        let domain = flags::domain(matches, &rules).ok_or_else(|| CommandError::Usage(several.to_owned()))?;
        return envoys::run(matches, rules, domain);
    }
    let flags = flags::read(matches, &rules).map_err(CommandError::Usage)?;
    let json = flags.json;
    let goal = flags.goal;
    let report = block_on(in_background(rules, flags))?;
    let text = if json {
        serde_json::to_string(&report).map_err(|error| error.to_string())?
    } else {
        table::text(&report, goal)
    };
    Ok((text, ExitCode::SUCCESS))
}

fn load(path: &Path) -> Result<Rules, String> {
    tollgate_rules::load(path).map_err(|problems| problems.to_string())
}

/// Simulates in another thread, shows the progress, and ends with what there is when a signal arrives.
async fn in_background(rules: Rules, flags: Flags) -> Result<SimulationReport, String> {
    let mut interrupts = Interrupts::new()?;
    let progress = Arc::new(Progress::default());
    let simulation = Simulation { flags, progress: progress.clone(), standard_input: None };
    let mut running = task::spawn_blocking(move || simulation.run(rules));
    let start = Instant::now();
    let line = || progress.line(start.elapsed());
    let ended = loop {
        match with_progress(&mut running, &mut interrupts, PROGRESS_INTERVAL, line).await {
            Some(ended) => break ended,
            None => stop(&progress),
        }
    };
    ended.map_err(|error| format!("the simulation failed: {error}"))?
}

/// The first signal ends the replay after the requests that were read. A read of the standard input may wait for ever,
/// so the second one ends the process.
fn stop(progress: &Progress) {
    if progress.is_stopped() {
        eprintln!("interrupted before the input ended");
        std::process::exit(1);
    }
    progress.stop();
}

/// A simulation that was not run yet.
struct Simulation {
    flags: Flags,
    progress: Arc<Progress>,
    // `None` if it is read once, or not at all.
    standard_input: Option<Arc<[u8]>>,
}

impl Simulation {
    fn run(mut self, rules: Rules) -> Result<SimulationReport, String> {
        if self.flags.goal.is_some() && self.reads_standard_input() {
            let retained = file::retain(io::stdin(), &self.progress);
            self.standard_input = Some(retained.map_err(|why| format!("{}: {why}", self.input_name()))?);
        }
        let other = self.flags.compare.as_deref().map(load).transpose()?;
        let mut table = RuleTable::default();
        let side = |rules, table: &mut RuleTable| {
            Side::new(rules, table, self.flags.memory_limit, Refusals::Answered)
        };
        let first = side(rules, &mut table);
        let second = other.map(|rules| side(rules, &mut table));
        let mut replay = Replay::new(table, first, second, self.flags.users_max);
        replay.decisions = self.flags.decisions.as_deref().map(DecisionsFile::create).transpose()?;
        let mut source = self.source()?;
        replay
            .run(&mut *source, &self.progress)
            .map_err(|error| format!("{}: {error}", self.input_name()))?;
        let skipped = source.skipped();
        if !replay.has_decided() && !self.progress.is_stopped() {
            let why = table::nothing_decided(&skipped, replay.first.unmatched);
            return Err(format!("{}: {why}", self.input_name()));
        }
        let suggestions = match self.flags.goal {
            Some(goal) if !replay.traffic.is_interrupted => self.suggestions(goal, replay.traffic.span())?,
            Some(_) | None => Vec::new(),
        };
        if self.progress.is_stopped() {
            replay.traffic.is_interrupted = true;
        }
        Ok(SimulationReport::new(
            &replay,
            [Some(&self.flags.rules), self.flags.compare.as_ref()],
            self.flags.top,
            self.input_name(),
            skipped,
            suggestions,
        ))
    }

    fn reads_standard_input(&self) -> bool {
        matches!(&self.flags.traffic, TrafficFlags::Recorded(recorded) if recorded.path == Path::new("-"))
    }

    fn input_name(&self) -> String {
        match &self.flags.traffic {
            TrafficFlags::Recorded(_) if self.reads_standard_input() => "standard input".to_owned(),
            TrafficFlags::Recorded(recorded) => recorded.path.display().to_string(),
            TrafficFlags::Generated(_) => "generated traffic".to_owned(),
        }
    }

    /// The traffic, from its start.
    fn source(&self) -> Result<Box<dyn Source>, String> {
        Ok(match &self.flags.traffic {
            TrafficFlags::Generated(terms) => {
                self.progress.begin(0);
                Box::new(Generated::new((**terms).clone()))
            }
            TrafficFlags::Recorded(recorded) => {
                let bytes = if self.reads_standard_input() {
                    file::open_standard_input(self.standard_input.as_ref(), &self.progress)?
                } else {
                    file::open(&recorded.path, &self.progress)?
                };
                Box::new(Recorded::new(bytes, (**recorded).clone()))
            }
        })
    }

    /// The suggestions; none if the search is interrupted.
    fn suggestions(&self, goal: Goal, span: Duration) -> Result<Vec<Suggestion>, String> {
        let rules = load(&self.flags.rules)?;
        let mut replay = |trial: &tollgate_rules::Trial, paths: &[String]| {
            let tried = tollgate_rules::load_trial(&self.flags.rules, trial)
                .map_err(|problems| problems.to_string())?;
            let mut table = RuleTable::default();
            let side = Side::new(tried, &mut table, self.flags.memory_limit, Refusals::WithShadow);
            let mut replay = Replay::new(table, side, None, self.flags.users_max);
            replay.run(&mut *self.source()?, &self.progress)?;
            Ok(rules_at(&replay, paths))
        };
        let found = suggest(&rules, goal, span, &self.progress, &mut replay)?;
        Ok(found.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
