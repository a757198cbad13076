//! Decodes reports without copying. The pairs of a bucket are read as bytes, because clients put the bytes of headers
//! into them.

use smallvec::SmallVec;
use tollgate_counter::descriptor::Entry;
use tollgate_store::divider::SubscriberUsage;
use tollgate_wire::protobuf::{FieldValue, MalformedMessage, MessageFields, entry};

/// The reports of a message of a client, in their order.
pub(super) struct BucketReports<'m> {
    message: &'m [u8],
    fields: MessageFields<'m>,
    pairs_max: usize,
}

/// The report of one bucket.
#[derive(Debug, Default)]
pub(super) struct BucketReport<'m> {
    /// The pairs; of too many only one more than the maximum.
    pub(super) pairs: SmallVec<[Entry<'m>; 4]>,
    pub(super) usage: SubscriberUsage,
    // The time that the usage is of, in seconds.
    pub(super) seconds: u64,
}

impl<'m> BucketReports<'m> {
    /// Examines a whole message before the first of its reports is counted. Returns its domain.
    pub(super) fn examine(message: &'m [u8]) -> Result<&'m [u8], MalformedMessage> {
        let mut domain: &[u8] = &[];
        let mut fields = MessageFields::new(message);
        while let Some(field) = fields.next_field()? {
            match field {
                (1, FieldValue::Bytes(bytes)) => domain = bytes,
                (2, FieldValue::Bytes(report)) => drop(BucketReport::decode(report, None)?),
                (1 | 2, _wrong_type) => return Err(MalformedMessage),
                (_unknown, _) => {}
            }
        }
        Ok(domain)
    }

    /// The reports of an examined message, from this byte on.
    pub(super) fn from(message: &'m [u8], from: usize, pairs_max: usize) -> Self {
        Self { message, fields: MessageFields::new(message.get(from..).unwrap_or_default()), pairs_max }
    }

    /// The byte from which the rest of the message is; `None` at its end.
    pub(super) fn next_part(&self) -> Option<usize> {
        let rest = self.fields.rest().len();
        (rest > 0).then(|| self.message.len() - rest)
    }
}

impl<'m> Iterator for BucketReports<'m> {
    type Item = BucketReport<'m>;

    fn next(&mut self) -> Option<BucketReport<'m>> {
        loop {
            match self.fields.next_field() {
                Ok(Some((2, FieldValue::Bytes(report)))) => {
                    return BucketReport::decode(report, Some(self.pairs_max)).ok();
                }
                Ok(Some(_other)) => {}
                Ok(None) | Err(MalformedMessage) => return None,
            }
        }
    }
}

impl<'m> BucketReport<'m> {
    /// Keeps at most one pair more than the maximum, and reads no further than that one. Without a maximum all are
    /// read and none is kept.
    fn decode(message: &'m [u8], pairs_max: Option<usize>) -> Result<Self, MalformedMessage> {
        let mut report = Self::default();
        let mut fields = MessageFields::new(message);
        while let Some(field) = fields.next_field()? {
            match field {
                (1, FieldValue::Bytes(id)) => report.decode_pairs(id, pairs_max)?,
                (2, FieldValue::Bytes(time)) => report.seconds = seconds(time)?,
                (3, FieldValue::Varint(allowed)) => report.usage.allowed = allowed,
                (4, FieldValue::Varint(denied)) => report.usage.denied = denied,
                (1..=4, _wrong_type) => return Err(MalformedMessage),
                (_unknown, _) => {}
            }
        }
        Ok(report)
    }

    fn decode_pairs(&mut self, id: &'m [u8], pairs_max: Option<usize>) -> Result<(), MalformedMessage> {
        let mut fields = MessageFields::new(id);
        while let Some(field) = fields.next_field()? {
            match field {
                (1, FieldValue::Bytes(pair)) => {
                    let pair = entry(pair)?;
                    let Some(max) = pairs_max else { continue };
                    self.pairs.push(pair);
                    if self.pairs.len() > max {
                        return Ok(());
                    }
                }
                (1, _wrong_type) => return Err(MalformedMessage),
                (_unknown, _) => {}
            }
        }
        Ok(())
    }
}

/// The pairs of an encoded id of a bucket; none if it is damaged.
pub(super) fn pairs_of_id(id: &[u8]) -> Vec<Entry<'_>> {
    let mut report = BucketReport::default();
    report.decode_pairs(id, Some(usize::MAX)).map(|()| report.pairs.into_vec()).unwrap_or_default()
}

/// The whole seconds of a `Duration`.
fn seconds(message: &[u8]) -> Result<u64, MalformedMessage> {
    let mut fields = MessageFields::new(message);
    let mut seconds = 0;
    while let Some(field) = fields.next_field()? {
        match field {
            // A negative one is a large number, and as good as none.
            (1, FieldValue::Varint(number)) => seconds = if number > u64::MAX / 2 { 0 } else { number },
            (1, _wrong_type) => return Err(MalformedMessage),
            (_unknown, _) => {}
        }
    }
    Ok(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_beyond_the_maximum_are_not_built() {
        let id = [10, 6, 10, 1, b'k', 18, 1, b'v'].repeat(100_000);
        let mut report = BucketReport::default();
        report.decode_pairs(&id, Some(4)).unwrap();
        assert_eq!(report.pairs.len(), 5, "one more than the maximum");
        assert!(report.pairs.capacity() <= 8);
    }
}
