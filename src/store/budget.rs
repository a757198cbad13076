//! How much memory counters may take.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The least that a budget may be, in bytes.
pub const BYTES_MIN: u64 = 1024 * 1024;

/// Bytes that may be taken, and that are.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_max: usize,
    used: AtomicUsize,
    // CounterState free for the tables that are still to come, so that none comes too late for its first counter.
    reserved: AtomicUsize,
    first_table_bytes: usize,
    // Of those taken, what is no table: copies, and what waits beside tables.
    outside_tables: AtomicUsize,
}

impl Budget {
    /// At most `most` bytes, for so many tables that begin with `first_table` bytes.
    pub(super) fn new(bytes_max: u64, tables: usize, first_table_bytes: usize) -> Self {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        // A budget that is smaller goes to whoever comes first.
        let first_table_bytes =
            if tables * first_table_bytes <= bytes_max / 4 * 3 { first_table_bytes } else { 0 };
        Self {
            bytes_max,
            used: AtomicUsize::new(0),
            reserved: AtomicUsize::new(tables * first_table_bytes),
            first_table_bytes,
            outside_tables: AtomicUsize::new(0),
        }
    }

    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Of that, what is no table.
    pub(super) fn outside_tables(&self) -> usize {
        self.outside_tables.load(Ordering::Relaxed)
    }

    /// The most that there may be.
    pub(super) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Whether more is taken than may be.
    pub(super) fn is_exceeded(&self) -> bool {
        self.bytes_max < self.used()
    }

    /// Whether that many more would be too many.
    pub(super) fn is_short_of(&self, bytes: usize) -> bool {
        let spoken_for = self.reserved.load(Ordering::Relaxed);
        self.bytes_max < self.used().saturating_add(spoken_for).saturating_add(bytes)
    }

    /// Whether `bytes` more would be too many for a table that has none yet.
    pub(super) fn is_short_of_first(&self, bytes: usize) -> bool {
        self.is_short_of(bytes.saturating_sub(self.first_table_bytes))
    }

    /// Notes that what took `before` bytes now takes `after`.
    pub(super) fn change(&self, before: usize, after: usize) {
        change(&self.used, before, after);
    }

    /// Notes that a table that took `before` bytes now takes `after`.
    pub(super) fn change_table(&self, before: usize, after: usize) {
        match (before, after) {
            (0, 0) => {}
            (0, _) => change(&self.reserved, self.first_table_bytes, 0),
            (_, 0) => change(&self.reserved, 0, self.first_table_bytes),
            (_, _) => {}
        }
        self.change(before, after);
    }
}

fn change(counter: &AtomicUsize, before: usize, after: usize) {
    // Most often nothing changes; then the number's line stays in the caches of all.
    if before < after {
        counter.fetch_add(after - before, Ordering::Relaxed);
    } else if after < before {
        counter.fetch_sub(before - after, Ordering::Relaxed);
    }
}

/// Bytes beside the tables, taken for as long as this lives; without a budget, of none.
#[derive(Debug, Default)]
pub(super) struct Reservation {
    budget: Option<Arc<Budget>>,
    bytes: usize,
}

impl Reservation {
    pub(super) fn of(budget: &Arc<Budget>) -> Self {
        Self { budget: Some(budget.clone()), bytes: 0 }
    }

    /// Takes so many from now on.
    pub(super) fn set(&mut self, bytes: usize) {
        if let Some(budget) = &self.budget {
            budget.change(self.bytes, bytes);
            change(&budget.outside_tables, self.bytes, bytes);
        }
        self.bytes = bytes;
    }
}

impl Clone for Reservation {
    fn clone(&self) -> Self {
        let mut clone = Self { budget: self.budget.clone(), bytes: 0 };
        clone.set(self.bytes);
        clone
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.set(0);
    }
}
