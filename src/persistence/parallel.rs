//! Work that is divided among threads, because it is too much for one.

use std::{
    num::NonZero,
    sync::{
        Mutex,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread::{self, Scope},
    time::Duration,
};

use tollgate_counter::{lock::lock, time::Stopwatch};
use tollgate_rules::{BackgroundPriority, set_idle_priority};

/// The maximum number of threads. More threads would only wait for the file.
const THREADS_MAX: usize = 8;
/// The items that a thread may have before it, so that it never waits for the next one.
const ITEMS_AHEAD: usize = 4;
/// The time for which the calling thread waits for idle-priority work until it does the rest of it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);
/// The calling thread of idle-priority work rests for so many times the time that it has worked.
const RESTS: u32 = 7;
/// The minimum time that a thread works before it rests, because a shorter rest takes longer than requested.
const WORK_MIN: Duration = Duration::from_micros(100);
/// The longest rest. A thread that had to wait for its core seems to have worked for longer than it has.
const REST_MAX: Duration = Duration::from_millis(4);

/// Maps each item on one of several threads. The calling thread takes the items from their iterator and consumes the
/// results, in any order, until there is an error. Only a few items are under way at a time.
///
/// With idle priority the calling thread, whose own priority is normal, rests after each step: the kernel would let it
/// keep its core for milliseconds while other threads are ready.
pub(super) fn map_in_any_order<T: Send, R: Send, E>(
    priority: BackgroundPriority,
    items: impl Iterator<Item = T>,
    map: impl Fn(T) -> R + Sync,
    consume: impl FnMut(R) -> Result<(), E>,
) -> Result<(), E> {
    let (sender, queue) = mpsc::channel();
    let queue = Mutex::new(queue);
    let map = &map;
    let queue = &queue;
    thread::scope(|scope| {
        let (results, received) = mpsc::channel();
        let wanted = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
        let start = |_: &usize| start(scope, priority, queue, map, results.clone());
        let threads = (0..wanted).take_while(start).count();
        drop(results);
        feed(priority, threads, (sender, received), items, map, consume)
    })
}

/// Starts a thread and returns whether there is one.
fn start<'scope, T: Send + 'scope, R: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    priority: BackgroundPriority,
    queue: &'scope Mutex<Receiver<T>>,
    map: &'scope (impl Fn(T) -> R + Sync),
    results: Sender<R>,
) -> bool {
    let work = move || {
        if priority == BackgroundPriority::Idle {
            set_idle_priority();
        }
        let next = || lock(queue).recv();
        while let Ok(item) = next() {
            if results.send(map(item)).is_err() {
                return;
            }
        }
    };
    thread::Builder::new().name("snapshot".to_owned()).spawn_scoped(scope, work).is_ok()
}

fn feed<T, R, E>(
    priority: BackgroundPriority,
    threads: usize,
    (sender, results): (Sender<T>, Receiver<R>),
    mut items: impl Iterator<Item = T>,
    map: impl Fn(T) -> R,
    mut consume: impl FnMut(R) -> Result<(), E>,
) -> Result<(), E> {
    let mut under_way = 0;
    let mut waited = Duration::ZERO;
    let mut worked = Stopwatch::start();
    loop {
        if priority == BackgroundPriority::Idle && worked.elapsed() > WORK_MIN {
            thread::sleep((worked.elapsed() * RESTS).min(REST_MAX));
            worked = Stopwatch::start();
        }
        if threads == 0 || waited > IDLE_TIMEOUT {
            let Some(item) = items.next() else { break };
            consume(map(item))?;
        } else if under_way < threads * ITEMS_AHEAD {
            let Some(item) = items.next() else { break };
            // Fails if all threads have panicked, which ends the scope with a panic.
            let _ = sender.send(item);
            under_way += 1;
        } else {
            let waiting = Stopwatch::start();
            let received = results.recv_timeout(IDLE_TIMEOUT);
            if priority == BackgroundPriority::Idle {
                waited += waiting.elapsed();
                worked = Stopwatch::start();
            }
            match received {
                Ok(result) => {
                    under_way -= 1;
                    consume(result)?;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        while let Ok(result) = results.try_recv() {
            under_way -= 1;
            consume(result)?;
        }
    }
    drop(sender);
    results.iter().try_for_each(consume)
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn every_item_is_mapped_once_at_both_priorities() {
        for priority in [BackgroundPriority::Idle, BackgroundPriority::Normal] {
            let mut found = Vec::new();
            let consume = |result: u64| {
                found.push(result);
                Ok::<_, ()>(())
            };
            map_in_any_order(priority, 0..1_000_u64, |item| item * item, consume).unwrap();
            found.sort_unstable();
            assert!(found.into_iter().eq((0..1_000).map(|item| item * item)));
        }
    }

    #[test]
    fn first_error_ends_the_work() {
        let consume = |item: u64| if item == 10 { Err(item) } else { Ok(()) };
        // Without an end, these items would never be used up.
        assert_eq!(map_in_any_order(BackgroundPriority::Normal, 0.., |item| item, consume), Err(10));
    }

    #[test]
    fn panic_of_a_thread_is_passed_on() {
        let map = |item: u64| assert_ne!(item, 500, "intended");
        let work = || map_in_any_order(BackgroundPriority::Normal, 0..1_000, map, Ok::<_, ()>);
        assert!(catch_unwind(work).is_err());
    }
}
