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
    most: usize,
    taken: AtomicUsize,
    // Kept free for the tables that are still to come, so that none comes too late for its first counter.
    first_tables: AtomicUsize,
    first_table: usize,
    // Of those taken, what is no table: copies, and what waits beside tables.
    beside: AtomicUsize,
}

impl Budget {
    /// At most `most` bytes, for so many tables that begin with `first_table` bytes.
    pub(super) fn new(most: u64, tables: usize, first_table: usize) -> Self {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        // A budget that is smaller goes to whoever comes first.
        let first_table = if tables * first_table <= most / 4 * 3 { first_table } else { 0 };
        Self {
            most,
            taken: AtomicUsize::new(0),
            first_tables: AtomicUsize::new(tables * first_table),
            first_table,
            beside: AtomicUsize::new(0),
        }
    }

    pub(super) fn taken(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Of that, what is no table.
    pub(super) fn beside(&self) -> usize {
        self.beside.load(Ordering::Relaxed)
    }

    /// The most that there may be.
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// Whether more is taken than may be.
    pub(super) fn is_overdrawn(&self) -> bool {
        self.most < self.taken()
    }

    /// Whether that many more would be too many.
    pub(super) fn is_short_of(&self, bytes: usize) -> bool {
        let spoken_for = self.first_tables.load(Ordering::Relaxed);
        self.most < self.taken().saturating_add(spoken_for).saturating_add(bytes)
    }

    /// Whether `bytes` more would be too many for a table that has none yet.
    pub(super) fn is_short_of_first(&self, bytes: usize) -> bool {
        self.is_short_of(bytes.saturating_sub(self.first_table))
    }

    /// Notes that what took `before` bytes now takes `after`.
    pub(super) fn change(&self, before: usize, after: usize) {
        change(&self.taken, before, after);
    }

    /// Notes that a table that took `before` bytes now takes `after`.
    pub(super) fn change_table(&self, before: usize, after: usize) {
        match (before, after) {
            (0, 0) => {}
            (0, _) => change(&self.first_tables, self.first_table, 0),
            (_, 0) => change(&self.first_tables, 0, self.first_table),
            (_, _) => {}
        }
        self.change(before, after);
    }
}

fn change(number: &AtomicUsize, before: usize, after: usize) {
    // Most often nothing changes; then the number's line stays in the caches of all.
    if before < after {
        number.fetch_add(after - before, Ordering::Relaxed);
    } else if after < before {
        number.fetch_sub(before - after, Ordering::Relaxed);
    }
}

/// Bytes beside the tables, taken for as long as this lives; without a budget, of none.
#[derive(Debug, Default)]
pub(super) struct Taken {
    budget: Option<Arc<Budget>>,
    bytes: usize,
}

impl Taken {
    pub(super) fn of(budget: &Arc<Budget>) -> Self {
        Self { budget: Some(budget.clone()), bytes: 0 }
    }

    /// Takes so many from now on.
    pub(super) fn set(&mut self, bytes: usize) {
        if let Some(budget) = &self.budget {
            budget.change(self.bytes, bytes);
            change(&budget.beside, self.bytes, bytes);
        }
        self.bytes = bytes;
    }
}

impl Clone for Taken {
    fn clone(&self) -> Self {
        let mut clone = Self { budget: self.budget.clone(), bytes: 0 };
        clone.set(self.bytes);
        clone
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.set(0);
    }
}
