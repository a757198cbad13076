//! Locks, and what a panic under them means.

use std::{
    process,
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
};

/// A lock of what would count wrongly if a panic left it half-changed. After such a panic, its next use ends the process:
/// a new one starts from the last snapshot, and other replicas from their backups.
#[derive(Debug, Default)]
pub struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    /// An unlocked lock.
    pub const fn new(content: T) -> Self {
        Self(Mutex::new(content))
    }

    /// Locks, after other threads have unlocked it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        match self.0.lock() {
            Ok(guard) => guard,
            Err(_poisoned) => half_changed(),
        }
    }

    /// Locks, unless another thread has locked it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::WouldBlock) => None,
            Err(TryLockError::Poisoned(_)) => half_changed(),
        }
    }
}

/// Locks without regard to a panic elsewhere: every change leaves the content consistent.
#[inline]
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cold]
fn half_changed() -> ! {
    // Not the log, whose lines are written later.
    eprintln!("a panic has left counters half-changed: the process ends, because it could count wrongly");
    process::abort()
}

#[cfg(test)]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        process::Command,
    };

    use super::*;

    /// Tells the process that [`panic_under_lock_ends_the_process`] starts to do what ends it.
    const CHILD: &str = "TEST_OF_HALF_CHANGED_LOCK";

    #[test]
    #[expect(clippy::disallowed_methods, reason = "tells the processes of the test apart")]
    fn panic_under_lock_ends_the_process() {
        if std::env::var_os(CHILD).is_some() {
            let lock = Lock::new(0);
            let change = || {
                let _guard = lock.lock();
                panic!("in the middle of a change");
            };
            assert!(catch_unwind(AssertUnwindSafe(change)).is_err());
            drop(lock.lock());
            return;
        }
        let name = "lock::tests::panic_under_lock_ends_the_process";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let ended = child.args(["--exact", name, "--nocapture"]).env(CHILD, "1").output().unwrap();
        let output = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && output.contains("half-changed"), "{output}");
    }

    #[test]
    fn locked_lock_is_not_waited_for() {
        let lock = Lock::new(1);
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(guard);
        assert_eq!(lock.try_lock().as_deref(), Some(&1));
    }
}
