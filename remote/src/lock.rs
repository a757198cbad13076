//! Locks of what stays consistent.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks without regard to a panic elsewhere: every change leaves the content consistent.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
