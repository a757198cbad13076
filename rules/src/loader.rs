//! Activates contents of a source as a whole, or keeps the active rules.

use std::sync::Arc;

use tollgate_counter::time::Clock;
use tracing::{error, info, warn};

use crate::{
    active_rules::{ActiveRules, PreparedRules},
    background::{BackgroundPriority, run_in_background, spawn},
    compile::compile_all,
    contents::Contents,
    diagnostics::{Problem, Problems},
    keyed_rules::KeyedRules,
    overlay::Overlay,
};

/// The number of checks, and the pause between them, whether replaced rules are still in use. The product is longer
/// than any request that asks another replica.
const DROP_TRIES_MAX: usize = 200;
const DROP_PAUSE: std::time::Duration = std::time::Duration::from_millis(5);
/// Contents of up to this total size are read and compiled within about 2 ms, at normal priority.
const BYTES_AT_ONCE: usize = 64 * 1024;
/// The maximum number of problems in one log line.
const LOGGED_MAX: usize = 20;

/// The maximum number of problems that have a line each. No place in the code writes more lines in a second.
const LINES_MAX: usize = 10;

/// Loads the contents of one source.
#[derive(Debug)]
pub struct RuleLoader {
    // A path or a URL, for the log.
    source: String,
    clock: Clock,
    active_rules: Arc<ActiveRules>,
    overlay: Option<Arc<Overlay>>,
    // The total size at the last change.
    bytes: usize,
    // Whether a step of the present load has found no idle core.
    has_no_idle_core: bool,
}

impl RuleLoader {
    /// A loader that activates rules in `active_rules`. `source` names the source in log lines.
    pub fn new(source: String, clock: Clock, active_rules: Arc<ActiveRules>) -> Self {
        Self { source, clock, active_rules, overlay: None, bytes: 0, has_no_idle_core: false }
    }

    /// Sets what is added to rules that are loaded from now on.
    pub fn set_overlay(&mut self, overlay: Option<Arc<Overlay>>) {
        self.overlay = overlay;
    }

    /// Compiles `contents` and activates them, or records their problems. `version` is that of a control plane. `None`
    /// after a panic or at the end of the runtime: nothing was decided.
    pub async fn load(
        &mut self,
        contents: &Arc<Contents>,
        version: Option<&str>,
    ) -> Option<Result<(), Arc<Problems>>> {
        let compiled = self.compile(contents.clone()).await?;
        Some(self.activate(compiled, version))
    }

    /// Compiles `contents`. `None` as for [`RuleLoader::load`].
    pub(super) fn compile(
        &mut self,
        contents: Arc<Contents>,
    ) -> impl Future<Output = Option<Result<PreparedRules, Problems>>> + Send + use<> {
        self.bytes = contents.bytes();
        let overlay = self.overlay.clone();
        let active_rules = self.active_rules.clone();
        let compile = move || {
            let compiled = compile_all(&contents, overlay.as_deref());
            compiled.map(|rules| active_rules.prepare(rules))
        };
        let compiled = run_in_background(self.priority(), compile);
        async { compiled.await.map(|(compiled, _)| compiled) }
    }

    /// Activates compiled rules, or records their problems.
    pub(super) fn activate(
        &self,
        compiled: Result<PreparedRules, Problems>,
        version: Option<&str>,
    ) -> Result<(), Arc<Problems>> {
        let recovered = self.active_rules.status().last_error.is_some();
        let rules = match compiled {
            Ok(rules) => rules,
            Err(problems) => {
                let problems = Arc::new(problems);
                self.reject(problems.clone());
                return Err(problems);
            }
        };
        let now = self.clock.now();
        let version = version.map(str::to_owned);
        let replaced = self.active_rules.activate(rules, version, now);
        self.log_loaded(recovered);
        // No load waits for it. If the thread cannot be started, the rules are dropped here.
        let _ = spawn(self.priority(), move || drop_when_unused(replaced));
        Ok(())
    }

    /// Records why changes of the source are not seen at once; `None` if they are.
    pub(super) fn set_unseen_changes(&self, why: Option<String>) {
        self.active_rules.set_unseen_changes(why.map(Into::into));
    }

    /// Records that the contents are those of the active rules again.
    pub fn recover(&self, version: Option<&str>) {
        self.active_rules.recover(version);
        info!(source = self.source, "the rules of the source are the active ones again");
    }

    /// Large loads run at `SCHED_IDLE` so that they do not delay requests. Small ones, the first load, and the steps
    /// after one that found no idle core run at normal priority.
    pub(super) fn priority(&self) -> BackgroundPriority {
        let is_large = self.bytes > BYTES_AT_ONCE && self.active_rules.current().rules().is_some();
        if is_large && !self.has_no_idle_core { BackgroundPriority::Idle } else { BackgroundPriority::Normal }
    }

    /// Begins a load: its first step looks for an idle core.
    pub(super) fn begin(&mut self) {
        self.has_no_idle_core = false;
    }

    /// Records the priority that a step of the load took in the end.
    pub(super) fn step_ran_at(&mut self, priority: BackgroundPriority) {
        self.has_no_idle_core |= self.priority() != priority;
    }

    fn log_loaded(&self, recovered: bool) {
        let source = &self.source;
        let rules = self.active_rules.current();
        let status = self.active_rules.status();
        let Some(rules) = rules.rules() else { return };
        if !rules.warnings().is_empty() {
            let list = listed(rules.warnings().iter());
            warn!(source, warnings = rules.warnings().len(), list, "the rules have warnings");
        }
        let hash = rules.hash();
        let number = rules.len();
        let generation = status.generation;
        let version = status.version;
        info!(source, generation, version, hash, rules = number, recovered, "new rules are active");
    }

    fn reject(&self, problems: Arc<Problems>) {
        let source = &self.source;
        let number = problems.len();
        match self.active_rules.status().hash {
            Some(hash) => {
                let list = listed(problems.iter());
                error!(
                    source,
                    problems = number,
                    list,
                    hash,
                    "cannot load the rules; the previous rules stay active"
                );
            }
            None => {
                error!(source, problems = number, "cannot load the rules; no rules are active");
                for problem in problems.iter().take(LINES_MAX) {
                    error!("{problem}");
                }
            }
        }
        self.active_rules.fail(problems, self.clock.now());
    }
}

/// Drops replaced rules after the last request has released them. Dropping many rules takes a while; otherwise the
/// last request to read them would pay for it.
fn drop_when_unused(rules: Arc<KeyedRules>) {
    for _ in 0..DROP_TRIES_MAX {
        if Arc::strong_count(&rules) == 1 {
            break;
        }
        std::thread::sleep(DROP_PAUSE);
    }
}

/// The first problems, for one log line.
fn listed<'p>(problems: impl Iterator<Item = &'p Problem>) -> String {
    problems.take(LOGGED_MAX).map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_counter::time::Timestamp;

    use crate::rule_set::Rules;

    #[test]
    fn replaced_rules_are_dropped_after_their_last_reader() {
        let active_rules = ActiveRules::default();
        let reader = active_rules.current().clone();
        let left = Arc::downgrade(&reader);
        let next = active_rules.prepare(Rules::parse("next", "domain: d\n").unwrap());
        let replaced = active_rules.activate(next, None, Timestamp::EPOCH);
        let dropping = std::thread::spawn(move || drop_when_unused(replaced));
        assert!(!dropping.is_finished(), "waits for the reader");
        drop(reader);
        dropping.join().unwrap();
        assert_eq!(left.strong_count(), 0);
    }
}
