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
    /// It gets its share, for nobody is answered before it is done.
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
}

#[cfg(not(target_os = "linux"))]
fn give_way() {}

#[cfg(test)]
mod tests {
    use std::sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering::SeqCst},
    };

    use super::*;

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn work_gives_way_and_whoever_waits_for_it_does_not() {
        let policy = || thread_priority::thread_schedule_policy().unwrap();
        let before = policy();
        let idle = thread_priority::NormalThreadSchedulePolicy::Idle;
        let idle = thread_priority::ThreadSchedulePolicy::Normal(idle);
        for (way, expected) in [(Way::Given, idle), (Way::Kept, before)] {
            assert_eq!(aside(way, policy).await, Some(expected));
            assert_eq!(aside_once(way, policy).await, Some(expected));
        }
        assert_eq!(policy(), before);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_finds_no_idle_core_is_done_all_the_same() {
        // The first that begins is let go when the second has told.
        let (begun, barrier) = (AtomicUsize::new(0), Arc::new(Barrier::new(2)));
        let let_go = barrier.clone();
        let work = move || {
            let attempt = begun.fetch_add(1, SeqCst);
            if attempt == 0 {
                barrier.wait();
            }
            attempt
        };
        assert_eq!(aside(Way::Given, work).await, Some(1));
        let_go.wait();
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_panics_is_told_as_not_done() {
        assert_eq!(aside(Way::Given, || -> () { panic!("as it was told") }).await, None);
        assert_eq!(aside_once(Way::Given, || -> () { panic!("as it was told") }).await, None);
    }
}
