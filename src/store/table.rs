//! The table behind one lock: what it takes, and how it makes room when it may not grow.

use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::SharedValue;
use hashbrown::raw::RawTable;

use crate::{
    descriptor::Key,
    store::{budget::Budget, cell::Cell},
    time::Timestamp,
};

/// Counters by their keys.
pub(super) type Table = RawTable<(Key, SharedValue<Cell>)>;

/// One eighth of a table is cleared at a time, so that clearing is rare.
const ROOM_SHARE: usize = 8;
/// Where clearing frees less than this share, the next is put off.
const WORTH_SHARE: usize = 64;
/// For how long, in nanoseconds.
const REST: u64 = 50_000_000;

/// What all tables share.
#[derive(Debug)]
pub(super) struct Means {
    pub(super) budget: Budget,
    pub(super) evicted_idle: Tally,
    pub(super) evicted_unexpired: Tally,
}

/// Counts what happens.
#[derive(Debug, Default)]
pub(super) struct Tally(AtomicU64);

impl Tally {
    pub(super) fn add(&self, number: usize) {
        self.0.fetch_add(number as u64, Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Until when a table need not be cleared again, because that would free too little.
#[derive(Debug, Default)]
pub(super) struct Rest(AtomicU64);

/// The bytes that `table` takes, besides what its cells take elsewhere.
pub(super) fn bytes(table: &Table) -> usize {
    // A table that was never used has taken nothing.
    if table.capacity() == 0 { 0 } else { bytes_of(table.buckets()) }
}

/// The bytes of a table with so many buckets: each holds an entry and a byte that tells about it; a group of the
/// latter is there twice.
fn bytes_of(buckets: usize) -> usize {
    buckets * (size_of::<(Key, SharedValue<Cell>)>() + 1) + 16
}

/// How many counters fit into so many buckets.
fn capacity_of(buckets: usize) -> usize {
    if buckets < 8 { buckets - 1 } else { buckets / 8 * 7 }
}

pub(super) fn get_mut(table: &mut Table, key: Key) -> Option<&mut Cell> {
    let (_, cell) = table.get_mut(key.low(), |(other, _)| *other == key)?;
    Some(cell.get_mut())
}

pub(super) fn get(table: &Table, key: Key) -> Option<&Cell> {
    let (_, cell) = table.get(key.low(), |(other, _)| *other == key)?;
    Some(cell.get())
}

/// Forgets a counter, if there is one.
pub(super) fn remove(table: &mut Table, key: Key, means: &Means) {
    if let Some((_, cell)) = table.remove_entry(key.low(), |(other, _)| *other == key) {
        means.budget.change(cell.get().heap_bytes(), 0);
    }
}

/// Keeps a new counter if it can: within the budget, or in the place of others that are missed less.
pub(super) fn insert(
    table: &mut Table,
    key: Key,
    cell: Cell,
    now: Timestamp,
    means: &Means,
    rest: &Rest,
) -> bool {
    let heap = cell.heap_bytes();
    if means.budget.is_short_of(growth(table) + heap) {
        clear(table, now, means, rest);
        if means.budget.is_short_of(growth(table) + heap) {
            return false;
        }
    }
    let before = bytes(table);
    put(table, key, cell);
    means.budget.change(before, bytes(table) + heap);
    true
}

/// What one more counter makes the table take besides, while it moves into a larger one.
fn growth(table: &Table) -> usize {
    // A table that is half empty only tidies itself.
    let is_full = table.len() == table.capacity() && capacity_of(table.buckets()) / 2 <= table.len();
    if is_full { bytes_of(table.buckets() * 2) } else { 0 }
}

fn put(table: &mut Table, key: Key, cell: Cell) {
    table.insert(key.low(), (key, SharedValue::new(cell)), |(key, _)| key.low());
}

/// Makes room without growing: what is idle goes, then what is missed least, until an eighth is free. Those that
/// refuse now stay.
pub(super) fn clear(table: &mut Table, now: Timestamp, means: &Means, rest: &Rest) {
    if now.as_nanos() < rest.0.load(Ordering::Relaxed) {
        return;
    }
    let (buckets, before) = (table.buckets(), bytes(table));
    let mut cells = taken(table);
    let (all, heap) = (cells.len(), heap_bytes(&cells));
    cells.retain(|(_, cell)| now < cell.idle_at());
    means.evicted_idle.add(all - cells.len());

    let enough = all - (all / ROOM_SHARE).max(1).min(all);
    let may_go = cells.iter().filter(|(_, cell)| cell.harm(now).is_some()).count();
    let must_go = cells.len().saturating_sub(enough).min(may_go);
    if 0 < must_go && must_go < cells.len() {
        cells.select_nth_unstable_by_key(must_go, |(_, cell)| cell.harm(now).map_or(u16::MAX, u16::from));
    }
    means.evicted_unexpired.add(must_go);
    let stay = cells.split_off(must_go);
    if all - stay.len() <= all / WORTH_SHARE {
        rest.0.store(now.plus(REST).as_nanos(), Ordering::Relaxed);
    }
    means.budget.change(before + heap, heap_bytes(&stay));
    rebuild(table, capacity_of(buckets), stay);
    means.budget.change(0, bytes(table));
}

/// Gives memory back where a table has become much too large.
pub(super) fn shrink(table: &mut Table, means: &Means) {
    if table.capacity() == 0 || capacity_of(table.buckets()) <= table.len() * 4 {
        return;
    }
    let before = bytes(table);
    let cells = taken(table);
    rebuild(table, cells.len() * 2, cells);
    means.budget.change(before, bytes(table));
}

fn taken(table: &mut Table) -> Vec<(Key, Cell)> {
    std::mem::take(table).into_iter().map(|(key, cell)| (key, cell.into_inner())).collect()
}

fn rebuild(table: &mut Table, capacity: usize, cells: Vec<(Key, Cell)>) {
    table.reserve(capacity.max(cells.len()), |(key, _)| key.low());
    for (key, cell) in cells {
        put(table, key, cell);
    }
}

fn heap_bytes(cells: &[(Key, Cell)]) -> usize {
    cells.iter().map(|(_, cell)| cell.heap_bytes()).sum()
}
