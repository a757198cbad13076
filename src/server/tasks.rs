//! The tasks of the service, and why it ends.

use tokio::task::JoinSet;
use tollgate_cluster::ClusterError;
use tollgate_counter::time::ClockOutOfRange;

/// Why the service cannot start, or has stopped, as a text for the operator.
pub type ServiceError = Box<dyn std::error::Error + Send + Sync>;

/// The tasks of the service. None of them exits while it runs.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    pub(super) listeners: JoinSet<()>,
    pub(super) background: JoinSet<()>,
    /// Tasks that follow the system clock.
    pub(super) clock: JoinSet<ClockOutOfRange>,
    /// The links to other replicas; empty without a cluster.
    pub(super) links: JoinSet<Result<(), ClusterError>>,
}

impl Tasks {
    /// Waits until one of the tasks exits.
    pub(super) async fn exit(&mut self) -> ServiceError {
        let failed = |task, exit: Result<(), String>| -> ServiceError {
            let reason = exit.err().unwrap_or_else(|| "task exited unexpectedly".to_owned());
            format!("{task} failed: {reason}").into()
        };
        tokio::select! {
            exit = exit_of(&mut self.links) => match exit {
                Ok(Err(error)) => error.into(),
                Ok(Ok(())) => failed("cluster links", Ok(())),
                Err(panic) => failed("cluster links", Err(panic)),
            },
            exit = exit_of(&mut self.listeners) => failed("listener", exit),
            exit = exit_of(&mut self.background) => failed("background task", exit),
            exit = exit_of(&mut self.clock) => match exit {
                Ok(error) => error.into(),
                Err(panic) => failed("clock", Err(panic)),
            },
        }
    }
}

/// Waits until one of the tasks returns or panics. Never completes without tasks.
async fn exit_of<T: 'static>(tasks: &mut JoinSet<T>) -> Result<T, String> {
    match tasks.join_next().await {
        None => std::future::pending().await,
        Some(exit) => exit.map_err(|panic| panic.to_string()),
    }
}
