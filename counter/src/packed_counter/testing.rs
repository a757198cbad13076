//! What tests measure of packed counters.

use std::collections::BTreeSet;

use crate::{
    algorithm::{held::ChargePosition, log_counter::LogCounter},
    packed_counter::{
        codec::{Age, put},
        layout::PackedCounter,
    },
    time::timestamp::Timestamp,
};

impl PackedCounter {
    /// The bytes of the counter without the entries of a log that an earlier state has, but with those that are gone.
    pub fn bytes_of_changes(&self, earlier: Option<&Self>, now: Timestamp) -> usize {
        let mut all = Vec::new();
        self.write(now, &mut all);
        let Some(log) = self.log() else { return all.len() };
        let entries = |log: &LogCounter| log.hits().collect::<BTreeSet<_>>();
        let (entries, known) = (entries(log), earlier.and_then(Self::log).map(entries).unwrap_or_default());
        let bytes = |(at, hits): &(Timestamp, u64)| put(&(Age::new(*at, now), hits)).len();
        // The oldest ones need no bytes to go.
        let oldest = entries.first().map(|(at, _)| *at);
        let gone = known.iter().filter(|(at, _)| oldest.is_none_or(|oldest| oldest < *at));
        let gone = gone.filter(|(at, _)| log.index_of(ChargePosition::Instant(*at)).is_none());
        all.len() - entries.iter().map(bytes).sum::<usize>()
            + entries.difference(&known).map(bytes).sum::<usize>()
            + gone.map(bytes).sum::<usize>()
    }
}
