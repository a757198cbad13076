//! Background work, such as compiling rules, that must not delay requests.

use std::{io, sync::Arc, thread, time::Duration};

use tokio::{sync::mpsc, time::timeout};

/// The time that idle-priority work waits for a free core before it is started again at normal priority.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// The scheduling priority of background work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackgroundPriority {
    /// Runs only while a core is idle (`SCHED_IDLE`).
    Idle,
    /// Scheduled like all other threads.
    Normal,
}

/// Runs `work` on a thread of its own. Idle-priority work that takes longer than `IDLE_TIMEOUT` is started a second
/// time at normal priority, and the first result counts. Returns it with the last priority that was tried. `None` if the
/// thread cannot be started or panics.
pub(super) async fn run_in_background<T: Send + 'static>(
    priority: BackgroundPriority,
    work: impl Fn() -> T + Send + Sync + 'static,
) -> Option<(T, BackgroundPriority)> {
    let work = Arc::new(work);
    let (sender, mut receiver) = mpsc::channel(2);
    let attempt = || {
        let work = work.clone();
        let sender = sender.clone();
        // Fails if the watcher has ended or the other attempt was faster.
        move || {
            let _ = sender.try_send(work());
        }
    };
    if priority == BackgroundPriority::Idle {
        spawn(priority, attempt()).ok()?;
        if let Ok(done) = timeout(IDLE_TIMEOUT, receiver.recv()).await {
            return Some((done?, priority));
        }
    }
    spawn(BackgroundPriority::Normal, attempt()).ok()?;
    drop(sender);
    Some((receiver.recv().await?, BackgroundPriority::Normal))
}

/// Runs `work` on a thread of its own, without a timeout: at idle priority only what nothing waits for.
pub(super) fn spawn(priority: BackgroundPriority, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let work = move || {
        if priority == BackgroundPriority::Idle {
            set_idle_priority();
        }
        work();
    };
    thread::Builder::new().name("rules".to_owned()).spawn(work).map(drop)
}

/// Moves this thread to `SCHED_IDLE`. A low nice value is not enough: the kernel lets such a thread run for
/// milliseconds before it is preempted.
#[cfg(target_os = "linux")]
pub fn set_idle_priority() {
    use thread_priority::{
        NormalThreadSchedulePolicy::Idle, ThreadPriority, ThreadSchedulePolicy::Normal,
        set_thread_priority_and_policy, thread_native_id,
    };
    // On failure the work runs at normal priority and requests may be delayed.
    let _ = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, Normal(Idle));
    // A thread that became runnable before the change would otherwise wait for the kernel's next tick.
    thread::yield_now();
}

/// Does nothing on systems without `SCHED_IDLE`.
#[cfg(not(target_os = "linux"))]
pub fn set_idle_priority() {}

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
    async fn idle_work_runs_at_idle_policy_and_normal_work_does_not() {
        let before = policy();
        let (sender, receiver) = std::sync::mpsc::channel();
        spawn(BackgroundPriority::Idle, move || sender.send(policy()).unwrap()).unwrap();
        assert_eq!(receiver.recv(), Ok(IDLE));
        assert_eq!(
            run_in_background(BackgroundPriority::Normal, policy).await,
            Some((before, BackgroundPriority::Normal))
        );
        assert_eq!(policy(), before);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_work_without_an_idle_core_runs_at_normal_priority() {
        let (before, idle_core) = (policy(), Arc::new(Barrier::new(2)));
        let found = idle_core.clone();
        let work = move || {
            let policy = policy();
            if policy == IDLE {
                found.wait();
            }
            policy
        };
        assert_eq!(
            run_in_background(BackgroundPriority::Idle, work).await,
            Some((before, BackgroundPriority::Normal))
        );
        idle_core.wait();
    }

    #[tokio::test(start_paused = true)]
    async fn panic_of_background_work_returns_none() {
        assert_eq!(run_in_background(BackgroundPriority::Idle, || -> () { panic!("intended") }).await, None);
    }
}
