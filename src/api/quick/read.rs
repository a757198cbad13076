//! Reads a request where it lies: nothing is copied, and what is not usual is left to others.

use std::str;

use smallvec::SmallVec;

use crate::{api::envoy::HitsAsked, descriptor::Entry, limiter::Bounds};

/// A request as it was sent.
#[derive(Debug, Default)]
pub(super) struct Asked<'b> {
    pub(super) domain: &'b str,
    pub(super) hits_addend: u32,
    pub(super) descriptors: SmallVec<[Described; 2]>,
    // Those of all descriptors, one after the other.
    pub(super) entries: SmallVec<[Entry<'b>; 8]>,
}

/// A descriptor but for its entries.
#[derive(Debug, Default)]
pub(super) struct Described {
    /// Where its entries end.
    pub(super) end: usize,
    pub(super) limit: Option<LimitAsked>,
    pub(super) hits: HitsAsked,
}

/// A limit that the caller brings, whose unit may be none.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LimitAsked {
    pub(super) requests_per_unit: u32,
    pub(super) unit: i32,
}

/// The fields of a message, one after the other; `None` for one that is not usual, after which there is no more.
struct Fields<'b> {
    rest: &'b [u8],
}

/// The value of a field.
enum Value<'b> {
    Number(u64),
    Bytes(&'b [u8]),
    /// Four or eight bytes, as no field of ours is written.
    Fixed,
}

impl<'b> Asked<'b> {
    /// Reads `message`. `None` means that it is broken, larger than `bounds` allow, or not written as it usually is: the
    /// whole grammar is left to the decoder that knows it. What is read here means what it means there.
    pub(super) fn read(&mut self, message: &'b [u8], bounds: Bounds) -> Option<()> {
        for field in Fields::of(message) {
            match field? {
                (1, Value::Bytes(domain)) => self.domain = str::from_utf8(domain).ok()?,
                (2, Value::Bytes(descriptor)) => self.descriptor(descriptor, bounds)?,
                (3, Value::Number(hits)) => self.hits_addend = hits as u32,
                (1..=3, _wrong_type) => return None,
                (_unknown, Value::Number(_) | Value::Bytes(_) | Value::Fixed) => {}
            }
        }
        Some(())
    }

    fn descriptor(&mut self, message: &'b [u8], bounds: Bounds) -> Option<()> {
        let (index, first) = (self.descriptors.len(), self.entries.len());
        bounds.descriptor(index).ok()?;
        let mut described = Described::default();
        for field in Fields::of(message) {
            match field? {
                (1, Value::Bytes(entry)) => {
                    bounds.entry(index, self.entries.len() - first).ok()?;
                    self.entries.push(entry_of(entry)?);
                }
                // One that is sent twice goes on where it was.
                (2, Value::Bytes(limit)) => described.limit.get_or_insert_default().read(limit)?,
                (3, Value::Bytes(hits)) => read_number(described.hits.own.get_or_insert(0), hits)?,
                (4, Value::Number(is_refund)) => described.hits.are_given_back = is_refund != 0,
                (1..=4, _wrong_type) => return None,
                (_unknown, Value::Number(_) | Value::Bytes(_) | Value::Fixed) => {}
            }
        }
        described.end = self.entries.len();
        self.descriptors.push(described);
        Some(())
    }
}

fn entry_of(message: &[u8]) -> Option<Entry<'_>> {
    let mut entry = Entry { key: "", value: "" };
    for field in Fields::of(message) {
        match field? {
            (1, Value::Bytes(key)) => entry.key = str::from_utf8(key).ok()?,
            (2, Value::Bytes(value)) => entry.value = str::from_utf8(value).ok()?,
            (1..=2, _wrong_type) => return None,
            (_unknown, Value::Number(_) | Value::Bytes(_) | Value::Fixed) => {}
        }
    }
    Some(entry)
}

/// A `UInt64Value`.
fn read_number(number: &mut u64, message: &[u8]) -> Option<()> {
    for field in Fields::of(message) {
        match field? {
            (1, Value::Number(value)) => *number = value,
            (1, _wrong_type) => return None,
            (_unknown, Value::Number(_) | Value::Bytes(_) | Value::Fixed) => {}
        }
    }
    Some(())
}

impl LimitAsked {
    fn read(&mut self, message: &[u8]) -> Option<()> {
        for field in Fields::of(message) {
            match field? {
                (1, Value::Number(number)) => self.requests_per_unit = number as u32,
                (2, Value::Number(number)) => self.unit = number as i32,
                (1..=2, _wrong_type) => return None,
                (_unknown, Value::Number(_) | Value::Bytes(_) | Value::Fixed) => {}
            }
        }
        Some(())
    }
}

impl<'b> Fields<'b> {
    fn of(message: &'b [u8]) -> Self {
        Self { rest: message }
    }

    fn field(&mut self) -> Option<(u32, Value<'b>)> {
        let key = u32::try_from(self.varint()?).ok()?;
        let number = Some(key >> 3).filter(|number| *number != 0)?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => self.bytes(8).map(|_| Value::Fixed)?,
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Value::Bytes(self.bytes(length)?)
            }
            5 => self.bytes(4).map(|_| Value::Fixed)?,
            // Groups, which nobody sends, and what does not exist.
            _unusual => return None,
        };
        Some((number, value))
    }

    fn bytes(&mut self, length: usize) -> Option<&'b [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(bytes)
    }

    fn varint(&mut self) -> Option<u64> {
        /// The most bytes that a number is written in, and what the last of them may hold.
        const BYTES_MAX: usize = 10;
        const LAST_MAX: u8 = 1;
        // Nearly every number is a small one.
        if let [byte @ ..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Some(u64::from(*byte));
        }
        let mut number = 0;
        for (place, byte) in self.rest.iter().take(BYTES_MAX).enumerate() {
            number |= u64::from(byte & 0x7f) << (7 * place);
            if *byte < 0x80 {
                self.rest = &self.rest[place + 1..];
                return (place + 1 < BYTES_MAX || *byte <= LAST_MAX).then_some(number);
            }
        }
        None
    }
}

impl<'b> Iterator for Fields<'b> {
    type Item = Option<(u32, Value<'b>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field)
    }
}
