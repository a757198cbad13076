//! The table behind one lock: what it takes, and how it makes room when it may not grow.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

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
/// The least that a table that holds anything has.
const BUCKETS_MIN: usize = 4;
/// The bytes that it takes.
pub(super) const BYTES_FIRST: usize = bytes_of(BUCKETS_MIN);

/// What all tables share.
#[derive(Debug)]
pub(super) struct Means {
    pub(super) budget: Arc<Budget>,
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
const fn bytes_of(buckets: usize) -> usize {
    buckets * (size_of::<(Key, SharedValue<Cell>)>() + 1) + 16
}

/// The bytes of a table that holds up to so many counters.
pub(super) const fn bytes_for(capacity: usize) -> usize {
    if capacity == 0 { 0 } else { bytes_of(capacity * 8 / 7 + 1) }
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
    if is_full(table) {
        forget_idle(table, now, means);
    }
    if is_short(table, heap, means) {
        clear(table, now, means, rest);
        if is_short(table, heap, means) {
            return false;
        }
    }
    let before = bytes(table);
    put(table, key, cell);
    means.budget.change_table(before, bytes(table));
    means.budget.change(0, heap);
    true
}

/// Whether there is too little memory for one more counter that takes so much elsewhere.
fn is_short(table: &Table, heap: usize, means: &Means) -> bool {
    let more = if is_full(table) { bytes_of(next_buckets(table)) } else { 0 };
    if table.capacity() == 0 {
        means.budget.is_short_of_first(more + heap)
    } else {
        means.budget.is_short_of(more + heap)
    }
}

/// Whether one more counter makes the table move into a larger one.
fn is_full(table: &Table) -> bool {
    // A table that is half empty only tidies itself.
    table.len() == table.capacity() && capacity_of(table.buckets()) / 2 <= table.len()
}

fn next_buckets(table: &Table) -> usize {
    (table.buckets() * 2).max(BUCKETS_MIN)
}

/// Forgets what is idle in a full table, so that it does not grow for that. Where it was not worth the while, it
/// grows if it may.
fn forget_idle(table: &mut Table, now: Timestamp, means: &Means) {
    let (all, before) = (table.len(), bytes(table));
    let (mut stay, mut heap) = (Vec::with_capacity(all), 0);
    for (key, cell) in table.drain() {
        if now < cell.get().idle_at() {
            stay.push((key, cell.into_inner()));
        } else {
            heap += cell.get().heap_bytes();
        }
    }
    let forgotten = all - stay.len();
    means.evicted_idle.add(forgotten);
    means.budget.change(heap, 0);
    let larger = next_buckets(table);
    if forgotten * ROOM_SHARE < all && !means.budget.is_short_of(bytes_of(larger)) {
        rebuild(table, capacity_of(larger), stay);
    } else {
        stay.into_iter().for_each(|(key, cell)| put(table, key, cell));
    }
    means.budget.change_table(before, bytes(table));
}

/// A table of these counters.
pub(super) fn of(cells: impl ExactSizeIterator<Item = (Key, Cell)>) -> Table {
    let mut table = Table::new();
    table.reserve(cells.len(), |(key, _)| key.low());
    cells.for_each(|(key, cell)| put(&mut table, key, cell));
    table
}

/// All counters of a table.
pub(super) fn cells(table: Table) -> impl ExactSizeIterator<Item = (Key, Cell)> {
    table.into_iter().map(|(key, cell)| (key, cell.into_inner()))
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
    means.budget.change(heap, heap_bytes(&stay));
    rebuild(table, capacity_of(buckets), stay);
    means.budget.change_table(before, bytes(table));
}

/// Gives memory back where a table has become much too large.
pub(super) fn shrink(table: &mut Table, means: &Means) {
    if table.capacity() == 0 || capacity_of(table.buckets()) <= table.len() * 4 {
        return;
    }
    let before = bytes(table);
    let cells = taken(table);
    rebuild(table, cells.len() * 2, cells);
    means.budget.change_table(before, bytes(table));
}

fn taken(table: &mut Table) -> Vec<(Key, Cell)> {
    cells(std::mem::take(table)).collect()
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
