//! The memory budget of counters.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

/// The minimum of a budget, in bytes.
pub const BYTES_MIN: u64 = 1024 * 1024;

/// New data leaves one of this many parts of the memory to data that grows until the next sweep.
const GROWTH_DIVISOR: usize = 64;
/// Where copies take most of the memory, they leave this fraction to counters: a counter in use is worth more than a
/// copy.
const COUNTERS_DIVISOR: usize = 16;

/// The bytes in use, and their maximum.
#[derive(Debug)]
pub(super) struct Budget {
    bytes_max: usize,
    used: AtomicUsize,
    // Bytes reserved for the first allocation of each table that is still empty, so that no slot is left without
    // memory.
    reserved: AtomicUsize,
    first_table_bytes: usize,
    // The part of `used` outside of tables: copies, and side data of slots.
    outside_tables: AtomicUsize,
}

impl Budget {
    /// A budget of `bytes_max`, for this many tables whose first allocation takes `first_table_bytes`.
    pub(super) fn new(bytes_max: u64, tables: usize, first_table_bytes: usize) -> Self {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        // A budget that is too small for this reserves nothing.
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

    /// The part that is used outside of tables.
    pub(super) fn outside_tables(&self) -> usize {
        self.outside_tables.load(Ordering::Relaxed)
    }

    /// Whether more than half of the maximum is used outside of tables.
    pub(super) fn is_mostly_outside_tables(&self) -> bool {
        self.outside_tables() > self.bytes_max / 2
    }

    /// The maximum, in bytes.
    pub(super) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Whether more is used than new data may take.
    pub(super) fn is_exceeded(&self) -> bool {
        self.excess() > 0
    }

    /// The bytes that are used beyond what new data may take.
    pub(super) fn excess(&self) -> usize {
        self.spoken_for().saturating_sub(self.new_max())
    }

    /// The bytes that new data may still take.
    pub(super) fn free(&self) -> usize {
        self.new_max().saturating_sub(self.spoken_for())
    }

    /// The bytes in use and reserved.
    fn spoken_for(&self) -> usize {
        self.used().saturating_add(self.reserved.load(Ordering::Relaxed))
    }

    /// The bytes that are used when new data is refused.
    fn new_max(&self) -> usize {
        self.bytes_max - self.bytes_max / GROWTH_DIVISOR
    }

    /// Whether `bytes` more would exceed what new data may take.
    pub(super) fn is_short_of(&self, bytes: usize) -> bool {
        self.new_max() < self.spoken_for().saturating_add(bytes)
    }

    /// Whether `bytes` more outside of tables would exceed what new data may take, or, if most of the memory is used there
    /// already, leave less than a part of it to counters.
    pub(super) fn is_short_of_copy(&self, bytes: usize) -> bool {
        let left = if self.is_mostly_outside_tables() { self.bytes_max / COUNTERS_DIVISOR } else { 0 };
        self.is_short_of(bytes.saturating_add(left))
    }

    /// Whether `bytes` more would exceed what new data may take, for a table that is still empty.
    pub(super) fn is_short_of_first(&self, bytes: usize) -> bool {
        self.is_short_of(bytes.saturating_sub(self.first_table_bytes))
    }

    /// Records that an allocation of `before` bytes now takes `after`.
    pub(super) fn change(&self, before: usize, after: usize) {
        change(&self.used, before, after);
    }

    /// Records that a table of `before` bytes now takes `after`.
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
    // Usually nothing changes: without a write the cache line stays shared.
    if before < after {
        counter.fetch_add(after - before, Ordering::Relaxed);
    } else if after < before {
        counter.fetch_sub(before - after, Ordering::Relaxed);
    }
}

/// Bytes outside of tables, used until this is dropped. Without a budget they are not counted.
#[derive(Debug, Default)]
pub struct MemoryReservation {
    budget: Option<Arc<Budget>>,
    bytes: usize,
}

impl MemoryReservation {
    pub(super) fn new(budget: &Arc<Budget>) -> Self {
        Self { budget: Some(budget.clone()), bytes: 0 }
    }

    /// Sets the number of bytes.
    pub fn set(&mut self, bytes: usize) {
        if let Some(budget) = &self.budget {
            budget.change(self.bytes, bytes);
            change(&budget.outside_tables, self.bytes, bytes);
        }
        self.bytes = bytes;
    }

    /// The number of bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Clone for MemoryReservation {
    fn clone(&self) -> Self {
        let mut clone = Self { budget: self.budget.clone(), bytes: 0 };
        clone.set(self.bytes);
        clone
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.set(0);
    }
}
