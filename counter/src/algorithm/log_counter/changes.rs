//! The entries of a log, and what has changed in it since the last copy of changes.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::time::timestamp::Timestamp;

/// What has changed in a log since the last copy of changes; `None` if the next copy has everything. It does not
/// distinguish two logs.
#[derive(Clone, Debug, Default)]
pub struct LogChanges(Option<Box<SinceCopy>>);

/// The changes since a copy, as they are sent.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SinceCopy {
    // The number of entries of the copy that were older than those that it retains and have gone since.
    gone: u16,
    // The number of entries from the oldest one on that the copy has.
    retained: u16,
    // Whether the retained entries are missing here, except for the oldest one.
    #[serde(skip)]
    is_partial: bool,
    // Invariant: positions increase; all of them are those of `retained` entries or between them.
    edits: VecDeque<LogEdit>,
}

/// An entry of the last copy whose hits have changed since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEdit {
    /// The position in the last copy.
    position: u16,
    /// The hits now; 0 if the entry has gone.
    hits: u64,
}

impl PartialEq for LogChanges {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for LogChanges {}

impl LogChanges {
    /// No changes since a copy of a log of `entries`.
    pub(super) fn none(entries: usize) -> Self {
        // A log has at most `ENTRIES_MAX` entries and one more.
        let retained = u16::try_from(entries).unwrap_or(u16::MAX);
        Self((retained > 0).then(|| Box::new(SinceCopy { retained, ..SinceCopy::default() })))
    }

    /// The changes for a copy without the entries that have not changed; `None` if all have.
    pub(super) fn into_partial(self) -> Option<Self> {
        let Self(since) = self;
        Some(Self(Some(Box::new(SinceCopy { is_partial: true, ..*since? }))))
    }

    /// The changes of a partial copy as they are sent.
    pub(crate) fn sent(&self) -> Option<&SinceCopy> {
        self.0.as_deref().filter(|since| since.is_partial)
    }

    /// The changes of a partial copy that was sent.
    pub(super) fn from_sent(since: SinceCopy) -> Self {
        Self(Some(Box::new(SinceCopy { is_partial: true, ..since })))
    }

    /// The number of entries from the oldest one on that the copy has.
    pub(super) fn retained(&self) -> usize {
        self.0.as_ref().map_or(0, |since| since.retained.into())
    }

    /// The number of entries after the oldest one that have changed since the last copy.
    pub(crate) fn edited(&self) -> usize {
        self.0.as_ref().map_or(0, |since| since.edits.len())
    }

    /// The bytes on the heap.
    pub(super) fn heap_bytes(&self) -> usize {
        let bytes =
            |since: &SinceCopy| size_of::<SinceCopy>() + since.edits.capacity() * size_of::<LogEdit>();
        self.0.as_deref().map_or(0, bytes)
    }

    /// Records that the oldest entry was removed.
    pub(super) fn remove_oldest(&mut self) {
        if let Some(since) = &mut self.0 {
            since.gone = since.position(0) + 1;
            since.retained -= 1;
            while since.edits.front().is_some_and(|edit| edit.position < since.gone) {
                since.edits.pop_front();
            }
            self.0.take_if(|since| since.retained == 0);
        }
    }

    /// Records the hits of the entry at `index`; 0 if it is removed. Those of the oldest one are always copied.
    pub(super) fn set(&mut self, index: usize, hits: u64) {
        let Some(since) = self.0.as_mut().filter(|since| 0 < index && index < since.retained.into()) else {
            return;
        };
        let edit = LogEdit { position: since.position(index), hits };
        match since.edits.binary_search_by_key(&edit.position, |edit| edit.position) {
            Ok(place) => since.edits[place] = edit,
            Err(place) => since.edits.insert(place, edit),
        }
        // The oldest one stays.
        since.retained -= u16::from(hits == 0);
    }

    /// Records that the entries from `index` on are other ones.
    pub(super) fn replace_from(&mut self, index: usize) {
        let Some(since) = self.0.as_mut().filter(|since| index < since.retained.into()) else { return };
        let Some(last) = index.checked_sub(1) else {
            self.0 = None;
            return;
        };
        let last = since.position(last);
        while since.edits.back().is_some_and(|edit| last < edit.position) {
            since.edits.pop_back();
        }
        // Less than what was retained, so it fits.
        since.retained = index as u16;
    }

    /// Whether these changes can be applied to a copy of `entries`.
    pub(super) fn can_follow(&self, entries: usize) -> bool {
        self.sent().is_none_or(|since| {
            let removed = since.edits.iter().filter(|edit| edit.hits == 0).count();
            usize::from(since.retained) + usize::from(since.gone) + removed <= entries
        })
    }

    /// Applies the changes to the entries of an earlier copy.
    pub(super) fn apply(&self, entries: &mut VecDeque<LogEntry>) {
        let Some(since) = &self.0 else { return };
        entries.drain(..entries.len().min(since.gone.into()));
        if !since.edits.is_empty() {
            let mut edits = since.edits.iter().peekable();
            let mut position = usize::from(since.gone);
            entries.retain_mut(|entry| {
                if let Some(edit) = edits.next_if(|edit| usize::from(edit.position) == position) {
                    entry.hits = edit.hits;
                }
                position += 1;
                entry.hits > 0
            });
        }
        entries.truncate(since.retained.into());
    }
}

impl SinceCopy {
    /// The position in the last copy of the entry at `index`, which it has.
    fn position(&self, index: usize) -> u16 {
        // Less than what was retained, so it fits.
        let mut position = self.gone + index as u16;
        for edit in &self.edits {
            if position < edit.position {
                break;
            }
            position += u16::from(edit.hits == 0);
        }
        position
    }
}

/// Hits of one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    pub(crate) at: Timestamp,
    pub(crate) hits: u64,
}
