//! Decodes reports without copying. The pairs of a bucket are read as bytes, because clients put the bytes of headers
//! into them.

use smallvec::SmallVec;
use tollgate_limiter::divider::Usage;

use crate::api::protobuf::{Fields, Malformed, Value};

/// A message of a client.
#[derive(Debug, Default)]
pub(super) struct Reports<'m> {
    pub(super) domain: &'m [u8],
    rest: &'m [u8],
}

/// The report of one bucket.
#[derive(Debug, Default)]
pub(super) struct Report<'m> {
    pub(super) pairs: SmallVec<[Pair<'m>; 4]>,
    pub(super) usage: Usage,
    // The time that the usage is of, in seconds.
    pub(super) seconds: u64,
}

/// A pair of a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pair<'m> {
    pub(super) key: &'m [u8],
    pub(super) value: &'m [u8],
}

impl<'m> Reports<'m> {
    /// The domain of a message. Its reports are decoded one after the other.
    pub(super) fn decode(message: &'m [u8]) -> Result<Self, Malformed> {
        let mut reports = Self { domain: &[], rest: message };
        let mut fields = Fields::of(message);
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Bytes(domain)) => reports.domain = domain,
                // All are checked before the first is counted.
                (2, Value::Bytes(report)) => drop(Report::decode(report)?),
                (1 | 2, _wrong_type) => return Err(Malformed),
                (_unknown, _) => {}
            }
        }
        Ok(reports)
    }

    /// The reports in their order.
    pub(super) fn each(&self) -> impl Iterator<Item = Report<'m>> {
        let mut fields = Fields::of(self.rest);
        std::iter::from_fn(move || {
            loop {
                match fields.next() {
                    Ok(Some((2, Value::Bytes(report)))) => return Report::decode(report).ok(),
                    Ok(Some(_other)) => {}
                    Ok(None) | Err(Malformed) => return None,
                }
            }
        })
    }
}

impl<'m> Report<'m> {
    fn decode(message: &'m [u8]) -> Result<Self, Malformed> {
        let mut report = Self::default();
        let mut fields = Fields::of(message);
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Bytes(id)) => report.decode_pairs(id)?,
                (2, Value::Bytes(time)) => report.seconds = seconds(time)?,
                (3, Value::Varint(allowed)) => report.usage.allowed = allowed,
                (4, Value::Varint(denied)) => report.usage.denied = denied,
                (1..=4, _wrong_type) => return Err(Malformed),
                (_unknown, _) => {}
            }
        }
        Ok(report)
    }

    fn decode_pairs(&mut self, id: &'m [u8]) -> Result<(), Malformed> {
        let mut fields = Fields::of(id);
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Bytes(pair)) => self.pairs.push(Pair::decode(pair)?),
                (1, _wrong_type) => return Err(Malformed),
                (_unknown, _) => {}
            }
        }
        Ok(())
    }
}

/// The pairs of an encoded id of a bucket; none if it is damaged.
pub(super) fn pairs_of_id(id: &[u8]) -> Vec<Pair<'_>> {
    let mut report = Report::default();
    report.decode_pairs(id).map(|()| report.pairs.into_vec()).unwrap_or_default()
}

/// The whole seconds of a `Duration`.
fn seconds(message: &[u8]) -> Result<u64, Malformed> {
    let (mut fields, mut seconds) = (Fields::of(message), 0);
    while let Some(field) = fields.next()? {
        match field {
            // A negative one is a large number, and as good as none.
            (1, Value::Varint(number)) => seconds = if number > u64::MAX / 2 { 0 } else { number },
            (1, _wrong_type) => return Err(Malformed),
            (_unknown, _) => {}
        }
    }
    Ok(seconds)
}

impl<'m> Pair<'m> {
    fn decode(message: &'m [u8]) -> Result<Self, Malformed> {
        let mut pair = Self::default();
        let mut fields = Fields::of(message);
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Bytes(key)) => pair.key = key,
                (2, Value::Bytes(value)) => pair.value = value,
                (1 | 2, _wrong_type) => return Err(Malformed),
                (_unknown, _) => {}
            }
        }
        Ok(pair)
    }
}
