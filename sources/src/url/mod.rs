//! Rules from a URL: a rule file that is asked for again and again, with its `ETag`.
//!
//! What cannot be fetched or loaded leaves the active rules, as for files. The last good document is retained on disk.

use std::sync::Arc;

use tollgate_counter::time::Clock;
use tollgate_rules::{ActiveRules, file_watch::FileWatch};

mod address;
mod copy;
mod fetch;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod fuzz;
mod remote_file;
mod settings;
mod stats;

pub use address::Address;
pub use settings::UrlSettings;
pub use stats::UrlStats;

use remote_file::RemoteFile;

/// Follows the rules at a URL, for as long as it is polled.
pub(super) async fn follow(
    settings: UrlSettings,
    clock: Clock,
    active_rules: Arc<ActiveRules>,
    stats: Arc<UrlStats>,
) {
    let interval = settings.interval;
    let file = RemoteFile::start(settings, clock, active_rules, stats).await;
    FileWatch::new(file).run(interval).await;
}
