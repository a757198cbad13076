//! The source of the rules of a replica: files, a URL, or a control plane over xDS.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use tollgate_counter::{named, time::Clock};
use tollgate_rules::{ActiveRules, FileSettings, OverlayFile, RuleLoader, Watcher};

use crate::url::address::Address;

pub mod url;
pub mod xds;

/// The source of the rules, and whether they are needed.
#[derive(Clone, Debug)]
pub struct RuleSourceSettings {
    /// The source.
    pub source: SourceSettings,
    /// Whether the replica is ready only once rules are loaded.
    pub required: bool,
    /// Whether the path of rule files must exist at the start.
    pub path_must_exist: bool,
}

impl RuleSourceSettings {
    /// The path of the rule files if there is nothing, and the start must not wait for it.
    pub fn missing_path(&self) -> Option<&Path> {
        let SourceSettings::Files(FileSettings { path, .. }) = &self.source else { return None };
        // Other errors, such as a lack of permission, are problems of the rules.
        let is_missing = fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        (self.path_must_exist && is_missing).then_some(path)
    }
}

named! {
    /// The kind of a source of rules.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum RuleSourceKind {
        /// Rule files.
        Files = "files",
        /// A rule file at a URL.
        Url = "url",
        /// A control plane.
        Xds = "xds",
    }
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

/// Where the rules come from, as operators see it, and what is counted of it.
#[derive(Clone, Debug)]
pub struct RuleSource {
    /// The kind.
    pub kind: RuleSourceKind,
    /// The path or address, without secrets.
    pub name: Arc<str>,
    /// The counts of a rule file at a URL.
    pub url: Option<Arc<url::UrlStats>>,
    /// The counts of a control plane.
    pub xds: Option<Arc<xds::XdsStats>>,
}

impl RuleSource {
    /// A source of this kind and name, which has no counts.
    pub fn new(kind: RuleSourceKind, name: &str) -> Self {
        Self { kind, name: name.into(), url: None, xds: None }
    }
}

impl SourceSettings {
    /// The source, with all counts at zero.
    pub fn described(&self) -> RuleSource {
        match self {
            Self::Files(settings) => {
                RuleSource::new(RuleSourceKind::Files, &settings.path.display().to_string())
            }
            Self::Url(settings) => {
                let source = RuleSource::new(RuleSourceKind::Url, &settings.address.to_string());
                RuleSource { url: Some(Arc::default()), ..source }
            }
            Self::Xds(settings, _) => {
                let source = RuleSource::new(RuleSourceKind::Xds, &settings.url);
                RuleSource { xds: Some(Arc::default()), ..source }
            }
        }
    }

    /// Loads the rules and follows their changes, for as long as it is polled. `source` counts what a server sends.
    pub async fn run(self, clock: Clock, active_rules: Arc<ActiveRules>, source: RuleSource) {
        match self {
            Self::Files(settings) => Watcher::new(settings, clock, active_rules).run().await,
            Self::Url(settings) => {
                url::follow(*settings, clock, active_rules, source.url.unwrap_or_default()).await;
            }
            Self::Xds(settings, overlay) => {
                let stats = source.xds.unwrap_or_default();
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

/// Where rules are, unless a control plane has them.
#[derive(Clone, Debug)]
pub enum RuleLocation {
    /// A file or a directory.
    Path(PathBuf),
    /// A rule file on a server.
    Url(Address),
}

impl RuleLocation {
    /// The accepted texts.
    pub const EXPECTED: &str = "a path, a URL without a user such as https://HOST/PATH";
}

/// A text that begins with `http://` or `https://` is a URL, and any other one a path.
impl TryFrom<String> for RuleLocation {
    type Error = ();

    fn try_from(text: String) -> Result<Self, ()> {
        if Address::is_meant(&text) {
            return Address::parse(&text).map(Self::Url).ok_or(());
        }
        if text.is_empty() { Err(()) } else { Ok(Self::Path(text.into())) }
    }
}

/// The certificates of a connection with TLS, all in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTlsFiles {
    /// The authorities that sign the certificate of the server; `None` for those of the system.
    pub ca: Option<PathBuf>,
    /// The certificate chain and the key to show to the server.
    pub client: Option<(PathBuf, PathBuf)>,
    /// The name in the certificate of the server, if it is not the host of the URL.
    pub server_name: Option<String>,
}
