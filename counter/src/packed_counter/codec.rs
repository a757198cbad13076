//! The wire format of packed counters: a tag for the kind, then its fields.
//!
//! Debts and logs are sent as ages, because the clock of the other replica may differ. Windows keep their absolute
//! times: see [`DecodeClock`].

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    algorithm::{
        Counter, DebtCounter, LOG_ENTRIES_MAX, LogCounter, PenalizedCounter, PenaltyRecord, SentLogChanges,
        SlidingCounter, StepCounter, WindowCounter,
    },
    packed_counter::layout::{Large, MILLISECOND, Millis, PackedCounter, UsedShare},
    time::Timestamp,
};

// Tags never change their meaning; a new layout gets a new tag.
const WINDOW: u8 = 1;
const SLIDING: u8 = 2;
const DEBT: u8 = 3;
const STEP: u8 = 4;
const LARGE_WINDOW: u8 = 5;
const LARGE_SLIDING: u8 = 6;
const LARGE_DEBT: u8 = 7;
const LARGE_STEP: u8 = 8;
const LOG: u8 = 9;
const CHANGED_LOG: u8 = 10;
const PENALIZED: u8 = 11;

/// The largest encoded fields of a counter without the entries of a log, in bytes: five numbers and the used share.
const FIELDS_BYTES_MAX: usize = 5 * NUMBER_BYTES_MAX + 1;
/// The largest encoded change of an entry of a log, in bytes: its position and its hits.
const EDIT_BYTES_MAX: usize = 3 + NUMBER_BYTES_MAX;
/// The largest encoded record of refusals, in bytes: two instants, two numbers of 32 bits, a flag, and the tag of the
/// counter.
const RECORD_BYTES_MAX: usize = 2 * NUMBER_BYTES_MAX + 2 * 5 + 2;
/// The largest encoded number of 64 bits, in bytes.
pub const NUMBER_BYTES_MAX: usize = 10;

/// The result of decoding a counter, or something that belongs to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded<T = PackedCounter> {
    /// A value of this version.
    Known(T),
    /// The tag, or a part of the value, is unknown to this version.
    Unknown,
    /// The bytes are damaged.
    Malformed,
}

impl<T> Decoded<T> {
    /// Converts the value.
    pub fn map<U>(self, convert: impl FnOnce(T) -> U) -> Decoded<U> {
        self.and_then(|value| Decoded::Known(convert(value)))
    }

    /// Continues with the value.
    pub fn and_then<U>(self, next: impl FnOnce(T) -> Decoded<U>) -> Decoded<U> {
        match self {
            Self::Known(value) => next(value),
            Self::Unknown => Decoded::Unknown,
            Self::Malformed => Decoded::Malformed,
        }
    }
}

impl PackedCounter {
    /// Appends the encoded fields to `bytes`, and returns the tag.
    pub fn write(&self, now: Timestamp, bytes: &mut Vec<u8>) -> u8 {
        let age = |instant| Age::new(instant, now);
        match self {
            Self::Penalized(penalized) => {
                let PenalizedCounter { counter, record } = &**penalized;
                let PenaltyRecord { refusals, has_passed, penalties, until, forgotten_at } = record;
                let mut fields = Vec::new();
                let tag = counter.write(now, &mut fields);
                append(bytes, &(refusals, has_passed, penalties, age(*until), age(*forgotten_at), tag));
                bytes.append(&mut fields);
                PENALIZED
            }
            Self::Window { used, count, end } => with_fields(bytes, WINDOW, &(used, count, end)),
            Self::Sliding { used, until, previous, current } => {
                with_fields(bytes, SLIDING, &(used, until.timestamp(), previous, current))
            }
            Self::Debt { passing_debt_max, rest, paid_at } => {
                with_fields(bytes, DEBT, &(passing_debt_max, rest, age(*paid_at)))
            }
            Self::Step { passing_debt_max, spare, full_at } => {
                with_fields(bytes, STEP, &(passing_debt_max, spare, age(*full_at)))
            }
            Self::Large(large) => {
                let Large { counter, idle_at, used } = &**large;
                match counter {
                    Counter::Window(window) => with_fields(bytes, LARGE_WINDOW, &(used, idle_at, window)),
                    Counter::Sliding(sliding) => with_fields(bytes, LARGE_SLIDING, &(used, idle_at, sliding)),
                    Counter::Debt(DebtCounter { paid_at, rest }) => {
                        with_fields(bytes, LARGE_DEBT, &(used, age(*idle_at), age(*paid_at), rest))
                    }
                    Counter::Step(StepCounter { full_at, spare }) => {
                        with_fields(bytes, LARGE_STEP, &(used, age(*idle_at), age(*full_at), spare))
                    }
                    Counter::Log(log) => {
                        let entries: Vec<_> = log.hits().map(|(at, hits)| (age(at), hits)).collect();
                        match log.changes() {
                            None => with_fields(bytes, LOG, &(used, age(*idle_at), entries)),
                            Some(changes) => {
                                with_fields(bytes, CHANGED_LOG, &(used, age(*idle_at), entries, changes))
                            }
                        }
                    }
                    // A counter with a record is not large, whatever the counter is.
                    Counter::Penalized(penalized) => {
                        Self::large(*used, *idle_at, penalized.counter.clone()).write(now, bytes)
                    }
                }
            }
        }
    }

    /// The size of the encoded fields at any instant, in bytes, at most.
    pub fn encoded_bytes_max(&self) -> usize {
        if let Self::Penalized(penalized) = self {
            return RECORD_BYTES_MAX + penalized.counter.encoded_bytes_max();
        }
        let Some(log) = self.log() else { return FIELDS_BYTES_MAX };
        let entries = log.hits().map(|(_, hits)| NUMBER_BYTES_MAX + number_bytes(hits));
        FIELDS_BYTES_MAX + entries.sum::<usize>() + log.edited() * EDIT_BYTES_MAX
    }

    /// Decodes the fields of a tag.
    pub fn read(tag: u8, bytes: &[u8], clock: DecodeClock) -> Decoded {
        let packed = match tag {
            WINDOW => take(bytes).map(|(used, count, end)| {
                let end = clock.window_end(end);
                Self::Window { used, count, end }
            }),
            SLIDING => take(bytes).map(|(used, until, previous, current)| {
                let until = clock.window_end(until);
                let whole = until.minus(until.as_nanos() % MILLISECOND);
                // A whole number of milliseconds, so it fits.
                let until = Millis::from_instant(whole).unwrap_or(Millis([0; 3]));
                Self::Sliding { used, until, previous, current }
            }),
            DEBT => take(bytes).map(|(passing_debt_max, rest, age)| {
                let paid_at = clock.instant(age);
                Self::Debt { passing_debt_max, rest, paid_at }
            }),
            STEP => take(bytes).map(|(passing_debt_max, spare, age)| {
                let full_at = clock.instant(age);
                Self::Step { passing_debt_max, spare, full_at }
            }),
            LARGE_WINDOW => take(bytes).map(|(used, idle_at, end, count)| {
                let counter = WindowCounter { end: clock.window_end(end), count };
                Self::large(used, clock.window_end(idle_at), Counter::Window(counter))
            }),
            LARGE_SLIDING => take(bytes).map(|(used, idle_at, end, previous, current)| {
                let counter = SlidingCounter { end: clock.window_end(end), previous, current };
                Self::large(used, clock.window_end(idle_at), Counter::Sliding(counter))
            }),
            LARGE_DEBT => take(bytes).map(|(used, idle_at, paid_at, rest)| {
                let counter = DebtCounter { paid_at: clock.instant(paid_at), rest };
                Self::large(used, clock.instant(idle_at), Counter::Debt(counter))
            }),
            LARGE_STEP => take(bytes).map(|(used, idle_at, full_at, spare)| {
                let counter = StepCounter { full_at: clock.instant(full_at), spare };
                Self::large(used, clock.instant(idle_at), Counter::Step(counter))
            }),
            LOG => take(bytes).and_then(|(used, idle_at, entries): (_, _, Vec<_>)| {
                Self::from_log(used, idle_at, &entries, None, clock)
            }),
            CHANGED_LOG => take(bytes).and_then(|(used, idle_at, entries, changes): (_, _, Vec<_>, _)| {
                Self::from_log(used, idle_at, &entries, Some(changes), clock)
            }),
            PENALIZED => return Self::read_penalized(bytes, clock),
            _ => return Decoded::Unknown,
        };
        packed.map_or(Decoded::Malformed, Decoded::Known)
    }

    fn read_penalized(bytes: &[u8], clock: DecodeClock) -> Decoded {
        type Fields = (u32, bool, u32, Age, Age, u8);
        let Ok(((refusals, has_passed, penalties, until, forgotten_at, tag), fields)) =
            postcard::take_from_bytes::<Fields>(bytes)
        else {
            return Decoded::Malformed;
        };
        let until = clock.instant(until);
        let forgotten_at = clock.instant(forgotten_at).max(until);
        let record = PenaltyRecord { refusals, has_passed, penalties, until, forgotten_at };
        match tag {
            PENALIZED => Decoded::Malformed,
            _ => Self::read(tag, fields, clock).map(|counter| Self::penalized(counter, record)),
        }
    }

    fn from_log(
        used: UsedShare,
        idle_at: Age,
        entries: &[(Age, u64)],
        changes: Option<SentLogChanges>,
        clock: DecodeClock,
    ) -> Option<Self> {
        if entries.len() > LOG_ENTRIES_MAX {
            return None;
        }
        let hits = entries.iter().map(|(age, hits)| (clock.instant(*age), *hits));
        let log = match changes {
            None => LogCounter::from_hits(hits),
            Some(changes) => LogCounter::from_changes(changes, hits),
        };
        Some(Self::large(used, clock.instant(idle_at), Counter::Log(log)))
    }
}

/// An instant relative to now, in nanoseconds, within 292 years.
#[derive(Clone, Copy, serde::Serialize, serde::Deserialize)]
pub struct Age(i64);

/// The clock by which encoded instants are read.
#[derive(Clone, Copy, Debug)]
pub struct DecodeClock {
    /// The instant to which ages are relative.
    pub now: Timestamp,
    /// How far the clock is behind the one that wrote the times of windows, in nanoseconds: they are moved back by that,
    /// so that no key is locked out.
    pub behind: u64,
}

/// A clock that shows the same time as the one that wrote the windows, or nearly.
impl From<Timestamp> for DecodeClock {
    fn from(now: Timestamp) -> Self {
        Self { now, behind: 0 }
    }
}

impl DecodeClock {
    /// The instant of this age.
    pub fn instant(self, Age(age): Age) -> Timestamp {
        let distance = age.unsigned_abs();
        if age < 0 { self.now.minus(distance) } else { self.now.plus(distance) }
    }

    /// The end of a window that ends at `end` by the clock that wrote it. Whole milliseconds stay whole.
    pub fn window_end(self, end: Timestamp) -> Timestamp {
        end.minus(self.behind / MILLISECOND * MILLISECOND)
    }
}

impl Age {
    /// The distance of `instant` from `now`; negative if it is earlier.
    pub fn new(instant: Timestamp, now: Timestamp) -> Self {
        let nanos = |distance: u64| i64::try_from(distance).unwrap_or(i64::MAX);
        Self(nanos(instant.nanos_since(now)) - nanos(now.nanos_since(instant)))
    }

    /// As an unsigned number.
    pub fn to_bits(self) -> u64 {
        self.0.cast_unsigned()
    }

    /// Reads what [`Age::to_bits`] returned.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits.cast_signed())
    }
}

/// The size of an encoded number, in bytes.
pub fn number_bytes(number: u64) -> usize {
    (u64::BITS - (number | 1).leading_zeros()).div_ceil(7) as usize
}

/// The encoded bytes of a value.
pub fn put<T: Serialize>(value: &T) -> Vec<u8> {
    postcard::to_stdvec(value).expect("numbers in memory are always written")
}

/// Appends a record: a tag, a length and the fields.
pub fn put_tagged(bytes: &mut Vec<u8>, tag: u8, fields: &[u8]) {
    bytes.push(tag);
    append(bytes, &fields.len());
    bytes.extend_from_slice(fields);
}

/// Splits off the tag and the fields of what [`put_tagged`] has written.
pub fn tagged(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (length, rest) = postcard::take_from_bytes(rest).ok()?;
    let (fields, rest) = rest.split_at_checked(length)?;
    Some((*tag, fields, rest))
}

/// Appends encoded fields, and returns their tag.
fn with_fields<T: Serialize>(bytes: &mut Vec<u8>, tag: u8, fields: &T) -> u8 {
    append(bytes, fields);
    tag
}

fn append<T: Serialize>(bytes: &mut Vec<u8>, value: &T) {
    postcard::to_io(value, bytes).expect("numbers in memory are always written");
}

/// Decodes all of `bytes` as one value.
fn take<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(value)
}
