//! Decides when changed files are loaded, and remembers the contents that are active and those that were refused.
//!
//! Files are written in pieces and one after the other, so changed contents are loaded once two reads agree.

use std::{hash::Hash, time::Duration};

use siphasher::sip128::{Hasher128, SipHasher13};
use tokio::{task::spawn_blocking, time::sleep};

/// The time for which files must not change before they are considered completely written.
pub const SETTLE: Duration = Duration::from_millis(50);
/// The maximum number of reads in one poll while the files change.
const SETTLE_READS_MAX: usize = 20;

/// The fingerprints of the contents that are active, and of those that were refused after them.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileWatch {
    active: Option<u128>,
    refused: Option<u128>,
}

/// Contents of the files, which differ from the active ones or follow refused ones.
#[derive(Debug, PartialEq, Eq)]
pub struct Found<C> {
    /// The contents.
    pub contents: C,
    /// Their fingerprint.
    pub fingerprint: u128,
    /// What is known about them.
    pub state: State,
}

/// What is known about contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing.
    New,
    /// They were refused by the last attempt to load them.
    Refused,
    /// They are active; others were refused since.
    Active,
}

impl FileWatch {
    /// A watch of files whose active contents have this fingerprint.
    pub fn with_active(fingerprint: u128) -> Self {
        Self { active: Some(fingerprint), refused: None }
    }

    /// Reads the files until two reads agree. `None` if they are unchanged, cannot be read or do not settle. `read`
    /// returns contents with their fingerprint; it gets the previous read of the same poll.
    pub async fn poll<C, R>(&mut self, mut read: impl FnMut(Option<(C, u128)>) -> R) -> Option<Found<C>>
    where
        R: Future<Output = Option<(C, u128)>>,
    {
        let (mut contents, mut fingerprint) = read(None).await?;
        for _ in 0..SETTLE_READS_MAX {
            if self.refused == Some(fingerprint) {
                return Some(Found { contents, fingerprint, state: State::Refused });
            }
            if self.active == Some(fingerprint) && self.refused.is_none() {
                return None;
            }
            sleep(SETTLE).await;
            let (next_contents, next) = read(Some((contents, fingerprint))).await?;
            if next == fingerprint {
                let is_active = self.active == Some(fingerprint);
                let state = if is_active { State::Active } else { State::New };
                if is_active {
                    self.refused = None;
                }
                return Some(Found { contents: next_contents, fingerprint, state });
            }
            (contents, fingerprint) = (next_contents, next);
        }
        None
    }

    /// These contents are active now.
    pub fn accept(&mut self, fingerprint: u128) {
        *self = Self::with_active(fingerprint);
    }

    /// These contents cannot be used: the active ones stay.
    pub fn refuse(&mut self, fingerprint: u128) {
        self.refused = Some(fingerprint);
    }
}

/// A fingerprint of contents.
pub fn fingerprint(contents: &impl Hash) -> u128 {
    let mut hasher = SipHasher13::new();
    contents.hash(&mut hasher);
    hasher.finish128().as_u128()
}

/// Reads contents on a thread for blocking work. `None` if that panics.
pub async fn read_blocking<C: Hash + Send + 'static>(
    read: impl FnOnce() -> C + Send + 'static,
) -> Option<(C, u128)> {
    let read = move || {
        let contents = read();
        let fingerprint = fingerprint(&contents);
        (contents, fingerprint)
    };
    spawn_blocking(read).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls files that have these contents at one read after the other; the last one stays.
    async fn poll(watch: &mut FileWatch, reads: &[u128]) -> Option<(u128, State)> {
        let mut reads = reads.iter().copied();
        let mut last = None;
        let read = |_| {
            last = reads.next().or(last);
            std::future::ready(last.map(|contents| (contents, contents)))
        };
        watch.poll(read).await.map(|found| (found.contents, found.state))
    }

    #[tokio::test(start_paused = true)]
    async fn contents_are_found_once_two_reads_agree() {
        let mut watch = FileWatch::default();
        assert_eq!(poll(&mut watch, &[1, 2, 3, 3]).await, Some((3, State::New)));
        watch.accept(3);
        assert_eq!(poll(&mut watch, &[3]).await, None);
        assert_eq!(poll(&mut watch, &[]).await, None, "unreadable");
        let unsettled: Vec<_> = (10..100).collect();
        assert_eq!(poll(&mut watch, &unsettled).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn half_written_contents_are_not_found() {
        let mut watch = FileWatch::with_active(1);
        assert_eq!(poll(&mut watch, &[2, 1]).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn active_contents_are_found_again_after_refused_ones() {
        let mut watch = FileWatch::with_active(1);
        assert_eq!(poll(&mut watch, &[2]).await, Some((2, State::New)));
        watch.refuse(2);
        assert_eq!(poll(&mut watch, &[2]).await, Some((2, State::Refused)));
        assert_eq!(poll(&mut watch, &[1]).await, Some((1, State::Active)));
        assert_eq!(poll(&mut watch, &[1]).await, None);
        assert_eq!(poll(&mut watch, &[2]).await, Some((2, State::New)));
    }

    #[test]
    fn fingerprint_changes_with_contents() {
        let contents: [Result<&[u8], &str>; 3] = [Ok(b"a"), Ok(b"b"), Err("a")];
        let [one, other, error] = contents.map(|contents| fingerprint(&contents));
        assert!(one != other && other != error && one != error);
        assert_eq!(one, fingerprint(&contents[0]));
    }
}
