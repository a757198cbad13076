//! Usage on another replica that is still to be merged into a counter.

use tollgate_counter::{
    packed_counter::{DecodeClock, DecodeError, PackedCounter, number_bytes, put_tagged, tagged},
    time::Timestamp,
};

/// Usage on another replica: a counter, less the counter that it started from. Its weight depends on the limit, so it
/// waits for the next check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CounterUsage {
    pub(crate) packed: PackedCounter,
    pub(crate) base: Option<PackedCounter>,
}

impl CounterUsage {
    fn parts(&self) -> impl Iterator<Item = &PackedCounter> {
        [Some(&self.packed), self.base.as_ref()].into_iter().flatten()
    }

    /// Whether the usage no longer changes an answer.
    pub(crate) fn is_idle(&self, now: Timestamp) -> bool {
        self.packed.idle_at() <= now
    }

    /// What it costs to forget the usage of one key: the largest cost of its parts, or more if a counter refuses now.
    pub(crate) fn eviction_cost(each: &[Self], now: Timestamp) -> u16 {
        let cost = |usage: &Self| usage.packed.eviction_cost(now).map_or(u16::MAX, u16::from);
        each.iter().map(cost).max().unwrap_or_default()
    }

    /// The bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.parts().map(PackedCounter::heap_bytes).sum()
    }

    /// The size of the encoded usage at any instant, in bytes, at most.
    pub(super) fn encoded_bytes_max(&self) -> usize {
        let fields = self.parts().map(PackedCounter::encoded_bytes_max);
        fields.map(|fields| 1 + number_bytes(fields as u64) + fields).sum()
    }

    /// The encoded usage.
    pub(super) fn write(&self, now: Timestamp) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut fields = Vec::new();
        for packed in self.parts() {
            fields.clear();
            let tag = packed.write(now, &mut fields);
            put_tagged(&mut bytes, tag, &fields);
        }
        bytes
    }

    /// Decodes usage.
    pub(super) fn read(bytes: &[u8], clock: DecodeClock) -> Result<Self, DecodeError> {
        let (tag, packed, rest) = tagged(bytes).ok_or(DecodeError::Malformed)?;
        let packed = PackedCounter::read(tag, packed, clock)?;
        let base = match tagged(rest) {
            Some((tag, base, [])) => Some(PackedCounter::read(tag, base, clock)?),
            None if rest.is_empty() => None,
            Some(_) | None => return Err(DecodeError::Malformed),
        };
        Ok(Self { packed, base })
    }
}
