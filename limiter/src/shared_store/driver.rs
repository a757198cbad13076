//! Drives a lane: sends its batches one after the other while parts wait.

use std::sync::Arc;

use crate::{
    remote::{CounterChecks, Mode, lock},
    resilience::BreakerState,
    shared_store::{
        Shared,
        batch::Batch,
        connection::Connection,
        counters::Instants,
        failure::{Failure, unexpected, within},
        lane::{Answers, BatchStats, LaneStep},
        part::Part,
        script,
    },
    store::CounterOperation,
};

impl Shared {
    /// Sends what waits in a lane until nothing waits.
    pub(super) async fn drive(self: Arc<Self>, lane: usize) {
        let link = &self.links[lane % self.links.len()];
        loop {
            let mut answers = Answers::new();
            let breaker = lock(&self.lanes[lane]).breaker(self.local());
            let connection = match breaker {
                // In a cluster a lane may be unreachable while the link is open.
                BreakerState::Open => None,
                BreakerState::Closed | BreakerState::HalfOpen => link.connection(self.settings.timeout).await,
            };
            let local = self.local();
            let (Some((connection, number)), Some((server, given_up))) = (connection, self.server_now(local))
            else {
                lock(&self.lanes[lane]).fail_waiting(&mut answers);
                self.answer(answers);
                return;
            };
            let instants = Instants { local, server, given_up, replica: self.replica, claim_ms: 0 };
            let step = lock(&self.lanes[lane]).step(instants, &mut answers);
            self.answer(answers);
            match step {
                LaneStep::Send(batch, instants) => {
                    if self.send(lane, connection, batch, &instants).await {
                        link.report_broken(number);
                    }
                }
                LaneStep::Wait(pause) => tokio::time::sleep(pause).await,
                LaneStep::End => return,
            }
        }
    }

    /// Sends one batch. Returns whether the connection broke.
    async fn send(
        self: &Arc<Self>,
        lane: usize,
        mut connection: Connection,
        batch: Batch,
        instants: &Instants,
    ) -> bool {
        let channel = self.channel();
        let groups = batch.groups(|key| self.name(key), instants);
        let sent = self.local();
        let call = |command: &str, script: &str| script::call(command, script, &groups, &channel);
        let reply = within(self.settings.timeout, connection.call(script::script(), call)).await;
        let arrived = self.local();
        let reply = reply.and_then(|reply| script::read(reply, groups.len()).ok_or_else(unexpected));
        let (replies, failure) = match reply {
            Ok(reply) => {
                lock(&self.server_clock).observe(reply.time, arrived);
                self.last_failure.end();
                (reply.groups, None)
            }
            Err(error) => {
                self.last_failure.note(&error);
                (Vec::new(), Some(Failure::of(&error)))
            }
        };
        drop(groups);
        self.counts.batches.increase();
        self.counts.round_trips.record(arrived.since(sent));
        let mut answers = Answers::new();
        let stats = lock(&self.lanes[lane]).complete(batch, replies, failure, sent, arrived, &mut answers);
        let BatchStats { conflicts, lost, expired, has_opened, forgotten } = stats;
        self.counts.holds_released.add(expired.released as u64);
        self.counts.holds_charged.add(expired.charged as u64);
        self.counts.conflicts.add(conflicts);
        self.counts.lost.add(lost);
        self.counts.breaker_openings.add(has_opened.into());
        self.counts.checks.add(answers.iter().map(|(part, _)| part.checks.len() as u64).sum());
        self.answer(answers);
        drop(forgotten);
        failure.is_some_and(|failure| failure.is_broken)
    }

    /// Answers callers. If a caller does not wait any more, its charge is taken back.
    fn answer(self: &Arc<Self>, answers: Answers) {
        for (part, outcomes) in answers {
            let Part { checks, mode, reply, .. } = part;
            let Some(reply) = reply else { continue };
            let Err(Ok(outcomes)) = reply.send(outcomes) else { continue };
            if matches!(mode, Mode::DryRun(_)) {
                continue;
            }
            let undone: CounterChecks = checks
                .into_iter()
                .zip(outcomes)
                .filter_map(|(check, outcome)| {
                    let receipt = outcome.decision.receipt.filter(|_| outcome.charged > 0)?;
                    Some(check.with(CounterOperation::Undo(receipt)))
                })
                .collect();
            if !undone.is_empty() {
                self.counts.late.increase();
                self.take_back_late(undone);
            }
        }
    }
}
