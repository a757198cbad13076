//! `tollgate simulate`: replays traffic against rules, without a server.

use std::{
    io::{IsTerminal as _, stderr},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use clap::{ArgMatches, Command};
use tokio::{
    signal::unix::{SignalKind, signal},
    task,
    time::{Instant, MissedTickBehavior, interval},
};
use tollgate_rules::Rules;

use crate::{
    command::{CommandError, block_on},
    simulate::{
        decisions::DecisionsFile,
        engine::{Refusals, Replay, RuleTable, Side},
        event::Source,
        flags::{Flags, TrafficFlags},
        generator::Generated,
        input::{Recorded, file::RetainedInput},
        progress::Progress,
        report::{Names, SimulationReport},
        suggest::{Goal, Suggestion, Tried, suggest},
    },
};

mod decisions;
mod engine;
mod envoys;
mod event;
mod flags;
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

pub(super) fn command() -> Command {
    flags::command()
}

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
    let signals = |kind| signal(kind).map_err(|error| error.to_string());
    let mut interrupt = signals(SignalKind::interrupt())?;
    let mut terminate = signals(SignalKind::terminate())?;
    let progress = Arc::new(Progress::default());
    let retained_input = flags.goal.map(|_| RetainedInput::default());
    let simulation = Simulation { flags, progress: progress.clone(), retained_input };
    let mut running = task::spawn_blocking(move || simulation.run(rules));
    let shows_progress = stderr().is_terminal();
    let start = Instant::now();
    let mut ticks = interval(PROGRESS_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ended = loop {
        tokio::select! {
            ended = &mut running => break ended,
            _ = interrupt.recv() => stop(&progress),
            _ = terminate.recv() => stop(&progress),
            _ = ticks.tick(), if shows_progress => {
                // Return to the beginning of the line and clear it.
                eprint!("\r\x1b[2K{}", progress.line(start.elapsed()));
            }
        }
    };
    if shows_progress {
        eprint!("\r\x1b[2K");
    }
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
    // `None` if the input is read once.
    retained_input: Option<RetainedInput>,
}

impl Simulation {
    fn run(self, rules: Rules) -> Result<SimulationReport, String> {
        let other = self.flags.compare.as_deref().map(load).transpose()?;
        let mut table = RuleTable::default();
        let side = |rules, table: &mut RuleTable| {
            Side::new(rules, table, self.flags.memory_limit, Refusals::Answered)
        };
        let first = side(rules, &mut table);
        let second = other.map(|rules| side(rules, &mut table));
        let decisions = self.flags.decisions.as_deref().map(DecisionsFile::create).transpose()?;
        let mut replay = Replay::new(table, first, second, self.flags.users_max).with_decisions(decisions);
        let mut source = self.source()?;
        replay
            .run(&mut *source, &self.progress)
            .map_err(|error| format!("{}: {error}", self.input_name()))?;
        let skipped = source.skipped();
        if !replay.has_decided() && !self.progress.is_stopped() {
            let why = table::nothing_decided(&skipped, replay.first.totals.unmatched);
            return Err(format!("{}: {why}", self.input_name()));
        }
        let suggestions = match self.flags.goal {
            Some(goal) if !replay.traffic.is_interrupted => self.suggestions(goal, replay.traffic.span())?,
            Some(_) | None => Vec::new(),
        };
        if self.progress.is_stopped() {
            replay.traffic.is_interrupted = true;
        }
        let name = |path: &PathBuf| path.display().to_string();
        let names = Names {
            rules: name(&self.flags.rules),
            input: self.input_name(),
            compare: self.flags.compare.as_ref().map(name),
            top: self.flags.top,
        };
        Ok(SimulationReport::new(&replay, skipped, suggestions, names))
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
                    input::file::open_standard_input(self.retained_input.as_ref(), &self.progress)?
                } else {
                    input::file::open(&recorded.path, &self.progress)?
                };
                let mapping = recorded.mapping.clone();
                Box::new(Recorded::new(bytes, recorded.format(), mapping, recorded.on_bad_line))
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
            Ok(tried_rules(&replay, paths))
        };
        let found = suggest(&rules, goal, span, &self.progress, &mut replay)?;
        Ok(found.unwrap_or_default())
    }
}

fn tried_rules(replay: &Replay, paths: &[String]) -> Vec<Tried> {
    let counts = replay.users.counts(replay.table.rules.len());
    let tried = |path: &String| {
        let Some(index) = replay.table.find(path) else { return Tried::default() };
        let used = replay.first.rule(index);
        Tried {
            hits: used.hits,
            asked: used.asked,
            refused: used.refused,
            users: counts[index].all,
            users_refused: counts[index].refused[0],
        }
    };
    paths.iter().map(tried).collect()
}

#[cfg(test)]
mod tests;
