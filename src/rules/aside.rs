//! Work beside that of answering callers, which gives way to it where there are any.

use std::{io, sync::Arc, thread, time::Duration};

use tokio::{
    sync::{mpsc, oneshot},
    time::timeout,
};

/// How long work may wait for a core that nobody else needs.
const PATIENCE: Duration = Duration::from_secs(2);

/// Whether work gives way to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It is done where a core is idle.
    Given,
    /// It gets its share of the cores.
    Kept,
}

/// Does `work`. Where it gives way and that takes too long, it is begun once more by a thread that does not, and what
/// ends first counts. `None` where it could not run to its end.
pub(super) async fn aside<T: Send + 'static>(
    way: Way,
    work: impl Fn() -> T + Send + Sync + 'static,
) -> Option<T> {
    let work = Arc::new(work);
    let (tell, mut told) = mpsc::channel(2);
    let attempt = || {
        let (work, tell) = (work.clone(), tell.clone());
        // Nobody waits for it any more where the watcher has ended, or the other was sooner.
        move || drop(tell.try_send(work()))
    };
    if way == Way::Given {
        spawn(way, attempt()).ok()?;
        if let Ok(done) = timeout(PATIENCE, told.recv()).await {
            return done;
        }
    }
    spawn(Way::Kept, attempt()).ok()?;
    drop(tell);
    told.recv().await
}

/// Does `work`, however long it takes where it gives way. `None` where it could not run to its end.
pub(super) async fn aside_once<T: Send + 'static>(
    way: Way,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (tell, told) = oneshot::channel();
    // Nobody waits for it any more where the watcher has ended.
    spawn(way, move || drop(tell.send(work()))).ok()?;
    told.await.ok()
}

fn spawn(way: Way, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let work = move || {
        match way {
            Way::Given => give_way(),
            Way::Kept => {}
        }
        work();
    };
    thread::Builder::new().name("rules".to_owned()).spawn(work).map(drop)
}

/// Lets this thread run only where no other would, and cease as soon as one would. A low priority is not enough: the
/// kernel lets such a thread go on for milliseconds before another has its turn.
#[cfg(target_os = "linux")]
fn give_way() {
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
fn give_way() {}

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
        assert_eq!(aside_once(Way::Given, policy).await, Some(IDLE));
        assert_eq!(aside_once(Way::Kept, policy).await, Some(before));
        assert_eq!(aside(Way::Kept, policy).await, Some(before));
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
        assert_eq!(aside(Way::Given, work).await, Some(before));
        idle_core.wait();
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_panics_is_told_as_not_done() {
        assert_eq!(aside(Way::Given, || -> () { panic!("as it was told") }).await, None);
        assert_eq!(aside_once(Way::Given, || -> () { panic!("as it was told") }).await, None);
    }
}
