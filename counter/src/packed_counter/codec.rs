//! The wire format of packed counters: a tag for the kind, then its fields.
//!
//! Debts and logs are sent as ages, because the clock of the other replica may differ. Windows keep their absolute
//! times: see [`DecodeClock`].

use serde::{Deserialize, Serialize};

use crate::{
    algorithm::{
        LOG_ENTRIES_MAX,
        counter::{Counter, PenalizedCounter},
        gcra::DebtCounter,
        log_counter::LogCounter,
        penalty::PenaltyRecord,
        sliding_window::SlidingCounter,
        stepped_bucket::StepCounter,
        window::WindowCounter,
    },
    packed_counter::layout::{Large, MILLISECOND, Millis, PackedCounter},
    time::timestamp::Timestamp,
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

/// Why a counter, or something that belongs to one, is not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// The tag, or a part of the value, is unknown to this version.
    Unknown,
    /// The bytes are damaged.
    Malformed,
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
                        match log.changes.sent() {
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
        FIELDS_BYTES_MAX + entries.sum::<usize>() + log.changes.edited() * EDIT_BYTES_MAX
    }

    /// Decodes the fields of a tag.
    pub fn read(tag: u8, bytes: &[u8], clock: DecodeClock) -> Result<Self, DecodeError> {
        Ok(match tag {
            WINDOW => {
                let (used, count, end) = take(bytes)?;
                Self::Window { used, count, end: clock.window_end(end) }
            }
            SLIDING => {
                let (used, until, previous, current) = take(bytes)?;
                let until = clock.window_end(until);
                let whole = until.minus(until.as_nanos() % MILLISECOND);
                // A whole number of milliseconds, so it fits.
                let until = Millis::from_instant(whole).unwrap_or(Millis([0; 3]));
                Self::Sliding { used, until, previous, current }
            }
            DEBT => {
                let (passing_debt_max, rest, age) = take(bytes)?;
                Self::Debt { passing_debt_max, rest, paid_at: clock.instant(age) }
            }
            STEP => {
                let (passing_debt_max, spare, age) = take(bytes)?;
                Self::Step { passing_debt_max, spare, full_at: clock.instant(age) }
            }
            LARGE_WINDOW => {
                let (used, idle_at, end, count) = take(bytes)?;
                let counter = WindowCounter { end: clock.window_end(end), count };
                Self::large(used, clock.window_end(idle_at), counter.into())
            }
            LARGE_SLIDING => {
                let (used, idle_at, end, previous, current) = take(bytes)?;
                let counter = SlidingCounter { end: clock.window_end(end), previous, current };
                Self::large(used, clock.window_end(idle_at), counter.into())
            }
            LARGE_DEBT => {
                let (used, idle_at, paid_at, rest) = take(bytes)?;
                let counter = DebtCounter { paid_at: clock.instant(paid_at), rest };
                Self::large(used, clock.instant(idle_at), counter.into())
            }
            LARGE_STEP => {
                let (used, idle_at, full_at, spare) = take(bytes)?;
                let counter = StepCounter { full_at: clock.instant(full_at), spare };
                Self::large(used, clock.instant(idle_at), counter.into())
            }
            LOG => {
                let (used, idle_at, entries) = take(bytes)?;
                let log = LogCounter::from_hits(log_hits(entries, clock)?);
                Self::large(used, clock.instant(idle_at), log.into())
            }
            CHANGED_LOG => {
                let (used, idle_at, entries, changes) = take(bytes)?;
                let log = LogCounter::from_changes(changes, log_hits(entries, clock)?);
                Self::large(used, clock.instant(idle_at), log.into())
            }
            PENALIZED => return Self::read_penalized(bytes, clock),
            _ => return Err(DecodeError::Unknown),
        })
    }

    fn read_penalized(bytes: &[u8], clock: DecodeClock) -> Result<Self, DecodeError> {
        type Fields = (u32, bool, u32, Age, Age, u8);
        let ((refusals, has_passed, penalties, until, forgotten_at, tag), fields) =
            postcard::take_from_bytes::<Fields>(bytes).map_err(|_| DecodeError::Malformed)?;
        let until = clock.instant(until);
        let forgotten_at = clock.instant(forgotten_at).max(until);
        let record = PenaltyRecord { refusals, has_passed, penalties, until, forgotten_at };
        match tag {
            PENALIZED => Err(DecodeError::Malformed),
            _ => Ok(Self::penalized(Self::read(tag, fields, clock)?, record)),
        }
    }
}

/// The hits of a log, with their instants.
fn log_hits(
    entries: Vec<(Age, u64)>,
    clock: DecodeClock,
) -> Result<impl Iterator<Item = (Timestamp, u64)>, DecodeError> {
    if entries.len() > LOG_ENTRIES_MAX {
        return Err(DecodeError::Malformed);
    }
    Ok(entries.into_iter().map(move |(age, hits)| (clock.instant(age), hits)))
}

/// An instant relative to now, in nanoseconds, within 292 years.
#[derive(Clone, Copy, Serialize, Deserialize)]
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

    /// The age as an unsigned number.
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
pub fn take<'b, T: Deserialize<'b>>(bytes: &'b [u8]) -> Result<T, DecodeError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Err(postcard::Error::SerdeDeCustom) => Err(DecodeError::Unknown),
        Ok(_) | Err(_) => Err(DecodeError::Malformed),
    }
}
