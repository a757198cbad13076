//! The tasks of the service.

use tokio::task::JoinSet;
use tollgate_cluster::link;
use tollgate_counter::time::ClockOutOfRange;

use crate::server::ServiceError;

/// The tasks of the service. None of them exits while it runs.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    pub(super) listeners: JoinSet<()>,
    pub(super) background: JoinSet<()>,
    /// What follows the system clock.
    pub(super) clock: JoinSet<ClockOutOfRange>,
    /// The links to other replicas; empty without a cluster.
    pub(super) links: JoinSet<Result<(), link::LinkError>>,
}

impl Tasks {
    /// Waits until one of the tasks exits.
    pub(super) async fn exit(&mut self) -> ServiceError {
        tokio::select! {
            error = links_exit(&mut self.links) => error,
            error = task_exit(&mut self.listeners, "listener") => error,
            error = task_exit(&mut self.background, "background task") => error,
            error = clock_exit(&mut self.clock) => error,
        }
    }
}

/// Waits until one of the tasks exits.
async fn task_exit(tasks: &mut JoinSet<()>, task: &'static str) -> ServiceError {
    let reason = match tasks.join_next().await {
        None | Some(Ok(())) => "task exited unexpectedly".to_owned(),
        Some(Err(panic)) => panic.to_string(),
    };
    ServiceError::TaskFailed { task, reason }
}

/// Waits until the system clock is out of range.
async fn clock_exit(clock: &mut JoinSet<ClockOutOfRange>) -> ServiceError {
    match clock.join_next().await {
        None => std::future::pending().await,
        Some(Ok(error)) => error.into(),
        Some(Err(panic)) => ServiceError::TaskFailed { task: "clock", reason: panic.to_string() },
    }
}

/// Waits until the links task exits. Never completes without a cluster.
async fn links_exit(links: &mut JoinSet<Result<(), link::LinkError>>) -> ServiceError {
    match links.join_next().await {
        None => std::future::pending().await,
        Some(Ok(Ok(()))) => {
            ServiceError::TaskFailed { task: "cluster links", reason: "task exited unexpectedly".to_owned() }
        }
        Some(Ok(Err(error))) => error.into(),
        Some(Err(panic)) => ServiceError::TaskFailed { task: "cluster links", reason: panic.to_string() },
    }
}
