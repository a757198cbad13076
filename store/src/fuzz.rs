//! The fuzz target of slot data.

use tollgate_counter::time::{SECOND, Timestamp};

use crate::{check::OnFull, memory::Memory, slot::Slot, slot_data::SlotData};

const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND);
const MEMORY_LIMIT: usize = 1 << 24;

/// Slot data of another replica: what is decoded is encoded to the same, and a store accepts, copies and returns it.
pub fn slot_data(bytes: &[u8]) {
    let Ok(data) = SlotData::decode(bytes, NOW) else { return };
    let encoded = data.encode(NOW);
    let decoded = SlotData::decode(&encoded, NOW).expect("encoded slot data is valid");
    assert_eq!(decoded, SlotData::decode(&decoded.encode(NOW), NOW).expect("encoded slot data is valid"));
    let memory = Memory::new(MEMORY_LIMIT as u64, OnFull::Deny).with_slots(2).shared();
    memory.track_changes();
    let Some(data) = memory.within_limit(data) else { return };
    let mut copy = decoded;
    copy.merge(data.clone());
    memory.acquire(Slot(0), data, NOW);
    let later = NOW.plus(SECOND);
    memory.whole(Slot(0)).data.encode(later);
    let (released, _) = memory.release(Slot(0)).expect("the slot was acquired");
    memory.acquire(Slot(0), released, later);
    memory.acquire(Slot(1), copy.without_idle(later), later);
    assert!(memory.stats().bytes <= MEMORY_LIMIT, "{:?}", memory.stats());
}
