//! Decodes reports without copying. The pairs of a bucket are read as bytes, because clients put the bytes of headers
//! into them.

use smallvec::SmallVec;
use tollgate_limiter::divider::Usage;

use crate::api::protobuf::{Fields, Malformed, Value};

/// The reports of a message of a client, in their order.
pub(super) struct Reports<'m> {
    message: &'m [u8],
    fields: Fields<'m>,
    pairs_max: usize,
}

/// The report of one bucket.
#[derive(Debug, Default)]
pub(super) struct Report<'m> {
    /// The pairs; of too many only one more than the maximum.
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
    /// Examines a whole message before the first of its reports is counted. Returns its domain.
    pub(super) fn examine(message: &'m [u8]) -> Result<&'m [u8], Malformed> {
        let (mut domain, mut fields): (&[u8], _) = (&[], Fields::of(message));
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Bytes(bytes)) => domain = bytes,
                (2, Value::Bytes(report)) => drop(Report::decode(report, None)?),
                (1 | 2, _wrong_type) => return Err(Malformed),
                (_unknown, _) => {}
            }
        }
        Ok(domain)
    }

    /// The reports of an examined message, from this byte on.
    pub(super) fn from(message: &'m [u8], from: usize, pairs_max: usize) -> Self {
        Self { message, fields: Fields::of(message.get(from..).unwrap_or_default()), pairs_max }
    }

    /// The byte from which the rest of the message is; `None` at its end.
    pub(super) fn next_part(&self) -> Option<usize> {
        let rest = self.fields.rest().len();
        (rest > 0).then(|| self.message.len() - rest)
    }
}

impl<'m> Iterator for Reports<'m> {
    type Item = Report<'m>;

    fn next(&mut self) -> Option<Report<'m>> {
        loop {
            match self.fields.next() {
                Ok(Some((2, Value::Bytes(report)))) => return Report::decode(report, Some(self.pairs_max)).ok(),
                Ok(Some(_other)) => {}
                Ok(None) | Err(Malformed) => return None,
            }
        }
    }
}

impl<'m> Report<'m> {
    /// Keeps at most one pair more than the maximum, and reads no further than that one. Without a maximum all are
    /// read and none is kept.
    fn decode(message: &'m [u8], pairs_max: Option<usize>) -> Result<Self, Malformed> {
        let mut report = Self::default();
        let mut fields = Fields::of(message);
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Bytes(id)) => report.decode_pairs(id, pairs_max)?,
                (2, Value::Bytes(time)) => report.seconds = seconds(time)?,
                (3, Value::Varint(allowed)) => report.usage.allowed = allowed,
                (4, Value::Varint(denied)) => report.usage.denied = denied,
                (1..=4, _wrong_type) => return Err(Malformed),
                (_unknown, _) => {}
            }
        }
        Ok(report)
    }

    fn decode_pairs(&mut self, id: &'m [u8], pairs_max: Option<usize>) -> Result<(), Malformed> {
        let mut fields = Fields::of(id);
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Bytes(pair)) => {
                    let pair = Pair::decode(pair)?;
                    let Some(max) = pairs_max else { continue };
                    self.pairs.push(pair);
                    if self.pairs.len() > max {
                        return Ok(());
                    }
                }
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
    report.decode_pairs(id, Some(usize::MAX)).map(|()| report.pairs.into_vec()).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_beyond_the_maximum_are_not_built() {
        let id = [10, 6, 10, 1, b'k', 18, 1, b'v'].repeat(100_000);
        let mut report = Report::default();
        report.decode_pairs(&id, Some(4)).unwrap();
        assert_eq!(report.pairs.len(), 5, "one more than the maximum");
        assert!(report.pairs.capacity() <= 8);
    }
}
