//! The source of the rules of a replica: files, or a control plane over xDS.

use std::sync::Arc;

use tollgate_limiter::{
    rules::{ActiveRules, FileSettings, Loader, OverlayFile, Watcher},
    time::Clock,
};

pub mod xds;

/// The source of the rules, and whether they are needed.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The source.
    pub source: Source,
    /// Whether the replica is ready only once rules are loaded.
    pub required: bool,
}

/// The source of the rules.
#[derive(Clone, Debug)]
pub enum Source {
    /// Rule files.
    Files(FileSettings),
    /// A control plane, and a local file that adds to its rules.
    Xds(Box<xds::Settings>, Option<FileSettings>),
}

impl Source {
    /// Loads the rules and follows their changes, for as long as it is polled. `stats` counts what a control plane
    /// sends.
    pub async fn run(self, clock: Clock, active_rules: Arc<ActiveRules>, stats: Arc<xds::Stats>) {
        match self {
            Self::Files(settings) => Watcher::new(settings, clock, active_rules).run().await,
            Self::Xds(settings, overlay) => {
                let mut loader = Loader::new(settings.url.clone(), clock, active_rules.clone());
                let Some(FileSettings { path, poll_interval }) = overlay else {
                    return xds::follow(*settings, loader, None, stats).await;
                };
                let (mut file, mut overlays) = OverlayFile::watch(path, active_rules);
                // Before any rules, so that none are active without it.
                file.compare().await;
                loader.set_overlay(overlays.borrow_and_update().clone());
                tokio::join!(file.run(poll_interval), xds::follow(*settings, loader, Some(overlays), stats));
            }
        }
    }
}
