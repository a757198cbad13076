//! The source of the rules of a replica: files, a URL, or a control plane over xDS.

use std::sync::Arc;

use tollgate_counter::time::Clock;
use tollgate_rules::{ActiveRules, FileSettings, OverlayFile, RuleLoader, Watcher};

mod place;
mod tls_files;
pub mod url;
pub mod xds;

pub use place::RuleLocation;
pub use tls_files::ClientTlsFiles;

/// The source of the rules, and whether they are needed.
#[derive(Clone, Debug)]
pub struct RuleSourceSettings {
    /// The source.
    pub source: SourceSettings,
    /// Whether the replica is ready only once rules are loaded.
    pub required: bool,
}

/// The source of the rules.
#[derive(Clone, Debug)]
pub enum SourceSettings {
    /// Rule files.
    Files(FileSettings),
    /// A rule file at a URL.
    Url(Box<url::UrlSettings>),
    /// A control plane, and a local file that adds to its rules.
    Xds(Box<xds::XdsSettings>, Option<FileSettings>),
}

/// What is counted of the source; `None` for other sources.
#[derive(Clone, Debug, Default)]
pub struct RuleSourceStats {
    /// Rules from a URL.
    pub url: Option<Arc<url::UrlStats>>,
    /// Rules from a control plane.
    pub xds: Option<Arc<xds::XdsStats>>,
}

impl SourceSettings {
    /// The kind of the source, and its path or address without secrets.
    pub fn described(&self) -> (&'static str, String) {
        match self {
            Self::Files(settings) => ("files", settings.path.display().to_string()),
            Self::Url(settings) => ("url", settings.address.to_string()),
            Self::Xds(settings, _) => ("xds", settings.url.clone()),
        }
    }

    /// Numbers of this source, all zero.
    pub fn stats(&self) -> RuleSourceStats {
        match self {
            Self::Files(_) => RuleSourceStats::default(),
            Self::Url(_) => RuleSourceStats { url: Some(Arc::default()), ..RuleSourceStats::default() },
            Self::Xds(..) => RuleSourceStats { xds: Some(Arc::default()), ..RuleSourceStats::default() },
        }
    }

    /// Loads the rules and follows their changes, for as long as it is polled. `stats` counts what a server sends.
    pub async fn run(self, clock: Clock, active_rules: Arc<ActiveRules>, stats: RuleSourceStats) {
        match self {
            Self::Files(settings) => Watcher::new(settings, clock, active_rules).run().await,
            Self::Url(settings) => {
                url::follow(*settings, clock, active_rules, stats.url.unwrap_or_default()).await;
            }
            Self::Xds(settings, overlay) => {
                let stats = stats.xds.unwrap_or_default();
                let mut loader = RuleLoader::new(settings.url.clone(), clock, active_rules.clone());
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
