//! Carries out the steps of a script.

use rand::RngExt as _;
use tollgate_counter::time::SECOND;
use tollgate_store::CounterOperation;

use crate::sim::{
    Step, Tamper,
    keys::TestKey,
    world::{CRASH_WINDOW, MILLISECOND, STEP, World, readiness::StrangersAt},
};

impl World {
    pub(in crate::sim) fn run(&mut self, steps: &[Step]) {
        for step in steps {
            self.run_step(step);
        }
    }

    pub(in crate::sim) fn run_step(&mut self, step: &Step) {
        match step {
            Step::Start(count) => (0..*count).for_each(|_| self.start(None)),
            Step::Resume(count) => {
                for _ in 0..*count {
                    let snapshot = self.snapshots.pop_front();
                    self.start(snapshot.flatten());
                }
            }
            Step::LoseSnapshots(count) => {
                for snapshot in self.snapshots.iter_mut().take(*count) {
                    *snapshot = None;
                }
                self.note_fault(Some(0));
            }
            Step::Store => {
                let snapshot = |number: &usize| Some((*number, self.snapshot(*number)?));
                self.stored = (self.now, self.processes.keys().filter_map(snapshot).collect());
            }
            Step::AgeSnapshots => {
                let (at, stored) = &self.stored;
                let since = at.saturating_sub(CRASH_WINDOW);
                self.snapshots = stored.values().cloned().map(Some).collect();
                self.own_limits.lost.push((since, self.now));
                self.note_fault(Some(since));
            }
            Step::Drain(number) => self.drain(*number),
            Step::DrainTogether(numbers) => numbers.iter().for_each(|number| self.drain(*number)),
            Step::DrainOwner => {
                if let Some(owner) = self.owner(self.keys[0].key) {
                    self.drain(owner);
                }
            }
            Step::Kill(number) => self.kill(&[*number]),
            Step::KillTogether(numbers) => self.kill(numbers),
            Step::Freeze(number) => {
                self.note_fault(None);
                self.frozen.insert(*number, Vec::new());
            }
            Step::Cut(numbers) => self.set_cut(numbers, false),
            Step::CutOneWay(numbers) => self.set_cut(numbers, true),
            Step::Distrust(numbers) => {
                self.set_cut(numbers, false);
                self.strangers_at = StrangersAt::Cut;
            }
            Step::Stranger => self.strangers_at = StrangersAt::Seed,
            Step::Heal => {
                if !self.cut.is_empty() {
                    self.note_fault(None);
                    self.record.heal(self.now);
                }
                self.cut.clear();
                self.strangers_at = StrangersAt::None;
            }
            Step::Delay(millis) => self.delay_max = millis * MILLISECOND,
            Step::FreezeBorrower => self.freeze_borrower(),
            Step::Thaw => self.thaw(),
            Step::Skew(number, millis) => self.step_clock(*number, *millis),
            Step::Rules(divided_by) => {
                self.divided_by = *divided_by;
                self.record.divided_by = self.record.divided_by.max(*divided_by);
                // A replica that has not seen the last change sees only this one.
                self.rule_changes.clear();
                for number in self.processes.keys() {
                    let due = self.now + self.rng.random_range(0..300 * MILLISECOND);
                    self.rule_changes.push((due, *number, *divided_by));
                }
            }
            Step::Traffic(calls_per_second) => self.set_traffic(*calls_per_second, usize::MAX, false),
            Step::Hot(calls_per_second) => self.set_traffic(*calls_per_second, 1, false),
            Step::Mixed(calls_per_second) => self.set_traffic(*calls_per_second, usize::MAX, true),
            Step::Hold(calls_per_second) => {
                self.traffic.holds_per_second = *calls_per_second;
                self.record.has_holds = true;
            }
            Step::Own(calls_per_second) => self.traffic.own_per_second = *calls_per_second,
            Step::Envoys(envoys) => self.start_envoys(envoys),
            Step::Flood(keys) => self.flood(*keys),
            Step::Tamper(Tamper::CancelHolds(key)) => self.cancel_holds(*key),
            Step::Tamper(Tamper::ForgetOwnLimits) => self.forget_own_limits(),
            Step::Tamper(Tamper::SetHits(key, hits)) => {
                let TestKey { key, limit, .. } = self.keys[*key].clone();
                if let Some(owner) = self.owner(key) {
                    let memory = &self.processes[&owner].memory;
                    let wall = self.wall_of(owner);
                    let set = memory.operate(key, &limit, &CounterOperation::Set(*hits), wall);
                    set.expect("the owner owns the slot");
                }
            }
            Step::Tamper(Tamper::Stall(number)) => {
                self.stalled.insert(*number);
            }
            Step::Tamper(Tamper::ShrinkMemory(bytes_max)) => self.bytes_max = *bytes_max,
            Step::Tamper(Tamper::RejuvenateCopies(millis)) => self.copies_younger_by = millis * MILLISECOND,
            Step::Pass(time) => self.pass(time.as_nanos() as u64),
            Step::Settle => {
                let end = self.now + 20 * SECOND;
                while self.unsettled().is_some() && self.now < end {
                    self.pass(STEP);
                }
            }
        }
    }
}
