//! Work beside that of answering callers, which gives way to it where there are any.

use std::{io, sync::Arc, thread, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

/// How long work may wait for a core that nobody else needs.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether work gives way to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    /// It is done where a core is idle.
    Idle,
    /// It gets its share of the cores.
    Normal,
}

/// Does `work`. Where it gives way and that takes too long, it is begun once more by a thread that does not, and what
/// ends first counts. `None` where it could not run to its end.
pub(super) async fn run_in_background<T: Send + 'static>(
    priority: Priority,
    work: impl Fn() -> T + Send + Sync + 'static,
) -> Option<T> {
    let work = Arc::new(work);
    let (sender, mut receiver) = mpsc::channel(2);
    let attempt = || {
        let (work, sender) = (work.clone(), sender.clone());
        // Nobody waits for it any more where the watcher has ended, or the other was sooner.
        move || drop(sender.try_send(work()))
    };
    if priority == Priority::Idle {
        spawn(priority, attempt()).ok()?;
        if let Ok(done) = timeout(IDLE_TIMEOUT, receiver.recv()).await {
            return done;
        }
    }
    spawn(Priority::Normal, attempt()).ok()?;
    drop(sender);
    receiver.recv().await
}

/// Does `work`, however long it takes where it gives way. `None` where it could not run to its end.
pub(super) async fn run_in_background_once<T: Send + 'static>(
    priority: Priority,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = oneshot::channel();
    // Nobody waits for it any more where the watcher has ended.
    spawn(priority, move || drop(sender.send(work()))).ok()?;
    receiver.await.ok()
}

fn spawn(priority: Priority, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let work = move || {
        match priority {
            Priority::Idle => set_idle_priority(),
            Priority::Normal => {}
        }
        work();
    };
    thread::Builder::new().name("rules".to_owned()).spawn(work).map(drop)
}

/// Lets this thread run only where no other would, and cease as soon as one would. A low priority is not enough: the
/// kernel lets such a thread go on for milliseconds before another has its turn.
#[cfg(target_os = "linux")]
fn set_idle_priority() {
    use thread_priority::{
        NormalThreadSchedulePolicy::Idle, ThreadPriority, ThreadSchedulePolicy::Normal,
        set_thread_priority_and_policy, thread_native_id,
    };
    // Where it cannot be had, callers wait a little longer.
    set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, Normal(Idle)).unwrap_or_default();
    // Whoever was woken while this thread did not yet give way would have to wait for the kernel's next tick.
    thread::yield_now();
}

#[cfg(not(target_os = "linux"))]
fn set_idle_priority() {}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use thread_priority::{NormalThreadSchedulePolicy, ThreadSchedulePolicy, thread_schedule_policy};

    use super::*;

    const IDLE: ThreadSchedulePolicy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);

    fn policy() -> ThreadSchedulePolicy {
        thread_schedule_policy().unwrap()
    }

    #[tokio::test]
    async fn work_that_gives_way_is_done_where_a_core_is_idle_and_other_work_is_not() {
        let before = policy();
        assert_eq!(run_in_background_once(Priority::Idle, policy).await, Some(IDLE));
        assert_eq!(run_in_background_once(Priority::Normal, policy).await, Some(before));
        assert_eq!(run_in_background(Priority::Normal, policy).await, Some(before));
        assert_eq!(policy(), before);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_finds_no_idle_core_is_done_all_the_same() {
        let (before, idle_core) = (policy(), Arc::new(Barrier::new(2)));
        let found = idle_core.clone();
        let work = move || {
            let policy = policy();
            if policy == IDLE {
                found.wait();
            }
            policy
        };
        assert_eq!(run_in_background(Priority::Idle, work).await, Some(before));
        idle_core.wait();
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_panics_is_told_as_not_done() {
        assert_eq!(run_in_background(Priority::Idle, || -> () { panic!("as it was told") }).await, None);
        assert_eq!(run_in_background_once(Priority::Idle, || -> () { panic!("as it was told") }).await, None);
    }
}
