//! Loads files again when they change. Contents that cannot be used leave the previous ones active.
//!
//! Files are written in pieces and one after the other, so changed contents are loaded once two reads agree. A document
//! that is fetched as a whole follows the same policy without the second read.

use std::{hash::Hash, time::Duration};

use siphasher::sip128::{Hasher128, SipHasher13};
use tokio::{task::spawn_blocking, time::sleep};

/// The time for which files must not change before they are considered completely written.
pub const SETTLE: Duration = Duration::from_millis(50);
/// The maximum number of reads in one comparison while the files change.
const SETTLE_READS_MAX: usize = 20;

/// Files that are loaded again when they change.
pub trait WatchedFiles: Send + Sync {
    /// What is read.
    type Contents: Send;
    /// Why contents cannot be used.
    type Error: Send;
    /// Whether contents that were refused may become valid as time passes, so that every comparison tries them again.
    const DEPENDS_ON_TIME: bool = false;
    /// Whether one read has complete contents, so that no second one must agree with it.
    const READS_ARE_WHOLE: bool = false;

    /// Waits until the files may have changed.
    fn wait(&mut self, _last: FileComparison, poll_interval: Duration) -> impl Future<Output = ()> + Send {
        sleep(poll_interval.max(SETTLE))
    }

    /// Reads the files, with a fingerprint. `None` leaves the reading to the next comparison.
    fn read(&mut self) -> impl Future<Output = Option<(Self::Contents, u128)>> + Send;

    /// Makes contents active. `None` leaves it to the next comparison.
    fn load(
        &mut self,
        contents: Self::Contents,
    ) -> impl Future<Output = Option<Result<(), Self::Error>>> + Send;

    /// Reports that new contents cannot be used and that the previous ones stay active, unless loading has reported it.
    fn refused(&mut self, _error: Self::Error) {}

    /// The files have the active contents again, after contents that were refused.
    fn recovered(&mut self) {}
}

/// The result of a comparison of files with the active contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileComparison {
    /// The files are as at the comparison before, cannot be read or did not settle.
    Unchanged,
    /// The files have changed, and their contents are active or refused now.
    Changed,
}

/// Follows files: compares them with their active contents, and loads them when they change.
#[derive(Debug)]
pub struct FileWatch<F> {
    /// The files.
    pub files: F,
    active: Option<u128>,
    refused: Option<u128>,
}

impl<F: WatchedFiles> FileWatch<F> {
    /// A watch of files of which nothing is active yet.
    pub fn new(files: F) -> Self {
        Self { files, active: None, refused: None }
    }

    /// A watch of files whose active contents have this fingerprint.
    pub fn with_active(files: F, fingerprint: u128) -> Self {
        Self { files, active: Some(fingerprint), refused: None }
    }

    /// Follows the files for as long as it is polled.
    pub async fn run(mut self, poll_interval: Duration) {
        loop {
            let last = self.compare().await;
            self.files.wait(last, poll_interval).await;
        }
    }

    /// Compares the files with the active contents and loads them on a change.
    pub async fn compare(&mut self) -> FileComparison {
        let Some((contents, fingerprint)) = self.settled().await else { return FileComparison::Unchanged };
        if self.active == Some(fingerprint) {
            self.refused = None;
            self.files.recovered();
            return FileComparison::Changed;
        }
        let is_new = self.refused != Some(fingerprint);
        if !is_new && !F::DEPENDS_ON_TIME {
            return FileComparison::Unchanged;
        }
        match self.files.load(contents).await {
            Some(Ok(())) => (self.active, self.refused) = (Some(fingerprint), None),
            Some(Err(error)) if is_new => {
                self.refused = Some(fingerprint);
                self.files.refused(error);
            }
            Some(Err(_)) => return FileComparison::Unchanged,
            None => {}
        }
        FileComparison::Changed
    }

    /// Reads the files until two reads agree. `None` if they are active, cannot be read or do not settle. Contents that
    /// were refused settled then.
    async fn settled(&mut self) -> Option<(F::Contents, u128)> {
        let (mut contents, mut fingerprint) = self.files.read().await?;
        for _ in 0..SETTLE_READS_MAX {
            if self.refused == Some(fingerprint) {
                return Some((contents, fingerprint));
            }
            if self.active == Some(fingerprint) && self.refused.is_none() {
                return None;
            }
            if F::READS_ARE_WHOLE {
                return Some((contents, fingerprint));
            }
            sleep(SETTLE).await;
            let before = fingerprint;
            (contents, fingerprint) = self.files.read().await?;
            if fingerprint == before {
                return Some((contents, fingerprint));
            }
        }
        None
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
    use std::{collections::VecDeque, sync::Mutex};

    use super::*;

    /// Files that have these contents at one read after the other; the last one stays. Contents from 100 are refused.
    #[derive(Default)]
    struct Reads {
        next: Mutex<VecDeque<u128>>,
        events: Vec<(&'static str, u128)>,
    }

    impl WatchedFiles for Reads {
        type Contents = u128;
        type Error = u128;

        async fn read(&mut self) -> Option<(u128, u128)> {
            let mut next = self.next.lock().unwrap();
            let first = *next.front()?;
            if next.len() > 1 {
                next.pop_front();
            }
            Some((first, first))
        }

        async fn load(&mut self, contents: u128) -> Option<Result<(), u128>> {
            if contents >= 100 {
                return Some(Err(contents));
            }
            self.events.push(("loaded", contents));
            Some(Ok(()))
        }

        fn refused(&mut self, contents: u128) {
            self.events.push(("refused", contents));
        }

        fn recovered(&mut self) {
            self.events.push(("recovered", 0));
        }
    }

    /// What one comparison of files with these reads does.
    async fn compare(watch: &mut FileWatch<Reads>, reads: &[u128]) -> Vec<(&'static str, u128)> {
        watch.files.next = Mutex::new(reads.iter().copied().collect());
        let comparison = watch.compare().await;
        let events = std::mem::take(&mut watch.files.events);
        assert_eq!(comparison == FileComparison::Changed, !events.is_empty());
        events
    }

    #[tokio::test(start_paused = true)]
    async fn contents_are_loaded_once_two_reads_agree() {
        let mut watch = FileWatch::new(Reads::default());
        assert_eq!(compare(&mut watch, &[1, 2, 3, 3]).await, [("loaded", 3)]);
        assert_eq!(compare(&mut watch, &[3]).await, []);
        assert_eq!(compare(&mut watch, &[]).await, [], "unreadable");
        let unsettled: Vec<_> = (10..100).collect();
        assert_eq!(compare(&mut watch, &unsettled).await, []);
        assert_eq!(compare(&mut watch, &[4, 3]).await, [], "half written");
    }

    #[tokio::test(start_paused = true)]
    async fn refused_contents_leave_the_previous_ones_active() {
        let mut watch = FileWatch::with_active(Reads::default(), 1);
        assert_eq!(compare(&mut watch, &[1]).await, []);
        assert_eq!(compare(&mut watch, &[100]).await, [("refused", 100)]);
        assert_eq!(compare(&mut watch, &[100]).await, []);
        assert_eq!(compare(&mut watch, &[1]).await, [("recovered", 0)]);
        assert_eq!(compare(&mut watch, &[1]).await, []);
        assert_eq!(compare(&mut watch, &[100]).await, [("refused", 100)]);
        assert_eq!(compare(&mut watch, &[2]).await, [("loaded", 2)]);
    }

    #[test]
    fn fingerprint_changes_with_contents() {
        let contents: [Result<&[u8], &str>; 3] = [Ok(b"a"), Ok(b"b"), Err("a")];
        let [one, other, error] = contents.map(|contents| fingerprint(&contents));
        assert!(one != other && other != error && one != error);
        assert_eq!(one, fingerprint(&contents[0]));
    }
}
