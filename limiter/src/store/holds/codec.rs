//! The wire format of holds. Their instants are sent as ages, except the ends of windows.

use crate::{
    algorithm::Place,
    store::{
        HOLD_TTL_MAX, HOLDS_MAX,
        holds::Holds,
        packed_counter::{Age, put},
    },
    time::Timestamp,
};

/// The result of decoding holds.
pub(in crate::store) enum DecodedHolds {
    Holds(Holds),
    /// The limit is unknown to this version.
    Unknown,
    Malformed,
}

impl Holds {
    /// The encoded holds.
    pub(in crate::store) fn write(&self, now: Timestamp) -> Vec<u8> {
        let age = |instant| Timestamp::from_nanos(Age::of(instant, now).to_bits());
        put(&self.clone().moved(age, |place| moved_place(place, age)))
    }

    /// The same holds, which are only the changes since an earlier copy.
    pub(in crate::store) fn partial(self) -> Self {
        Self { is_partial: true, ..self }
    }

    /// Decodes holds.
    pub(in crate::store) fn read(bytes: &[u8], now: Timestamp) -> DecodedHolds {
        let holds: Self = match postcard::take_from_bytes(bytes) {
            Ok((holds, [])) => holds,
            Err(postcard::Error::SerdeDeCustom) => return DecodedHolds::Unknown,
            Ok(_) | Err(_) => return DecodedHolds::Malformed,
        };
        let is_valid =
            holds.each.len() <= HOLDS_MAX && holds.each.iter().all(|hold| hold.ttl <= HOLD_TTL_MAX);
        if !is_valid {
            return DecodedHolds::Malformed;
        }
        let instant = |age: Timestamp| Age::of_bits(age.as_nanos()).instant(now);
        let mut holds = holds.with_bytes_of_ids();
        holds.forget_oldest();
        DecodedHolds::Holds(holds.moved(instant, |place| moved_place(place, instant)))
    }
}

/// The same place with another instant. Windows are the same on all replicas.
fn moved_place(place: Place, instant: impl Fn(Timestamp) -> Timestamp) -> Place {
    match place {
        Place::Sum | Place::Window(_) => place,
        Place::Instant(at) => Place::Instant(instant(at)),
    }
}
