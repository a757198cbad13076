//! Drives a lane: sends its batches one after the other while parts wait.

use std::sync::Arc;

use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind};

use crate::{
    remote::{CounterChecks, Mode},
    resilience::BreakerState,
    shared_store::{
        Shared,
        batch::Batch,
        connection::{Connection, classify},
        counters::Instants,
        lane::{Answers, BatchStats, LaneStep},
        lock,
        part::Part,
        script::{self, Group},
        unexpected,
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
        connection: Connection,
        batch: Batch,
        instants: &Instants,
    ) -> bool {
        let channel = self.channel();
        let groups = batch.groups(|key| self.name(key), instants);
        let sent = self.local();
        let mut connection = connection;
        let answered = call_script(&mut connection, &groups, &channel);
        let reply = tokio::time::timeout(self.settings.timeout, answered).await;
        let arrived = self.local();
        let reply = match reply.unwrap_or_else(|_elapsed| Err(timed_out())) {
            Ok(reply) if reply.groups.len() == groups.len() => Ok(reply),
            Ok(_) => Err(unexpected()),
            Err(error) => Err(error),
        };
        let (replies, failure) = match reply {
            Ok(reply) => {
                lock(&self.server_clock).observe(reply.time, arrived);
                self.note_success();
                (reply.groups, None)
            }
            Err(error) => {
                self.note_failure(&error);
                (Vec::new(), Some(classify(&error)))
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

async fn call_script(
    connection: &mut Connection,
    groups: &[Group<'_>],
    channel: &str,
) -> RedisResult<script::Reply> {
    let value = match connection.send(&script::by_hash(groups, channel)).await {
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
            connection.send(&script::by_source(groups, channel)).await?
        }
        other => other?,
    };
    script::read(value).ok_or_else(unexpected)
}

fn timed_out() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}
