//! The settings of the rules.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Deserializer};

use crate::{
    rules::{
        FileSettings, Settings, SourceSettings,
        xds::{self, TlsFiles},
    },
    settings::{
        CATALOG,
        value_type::{OFF, lacking},
    },
};

/// The setting that selects the source, and its value for a control plane.
const SOURCE: &str = "rules.source";
const XDS: &str = "xds";
/// The first part of the names of the settings of a control plane, and the setting of what is added to its rules.
const PREFIX: &str = "rules.xds.";
const OVERLAY: &str = "rules.overlay";
/// The setting that rules of files need.
const PATH: &str = "rules.path";

/// The section as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    source: SourceName,
    path: Option<PathBuf>,
    poll_interval: Duration,
    overlay: Option<PathBuf>,
    required: bool,
    xds: XdsSection,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SourceName {
    Files,
    Xds,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct XdsSection {
    url: Option<String>,
    node_id: String,
    node_metadata: Vec<String>,
    headers: Vec<String>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    server_name: Option<String>,
    max_message: u64,
    retry_min: Duration,
    retry_max: Duration,
}

/// Reads the section. [`problems`] has already checked that the settings are consistent.
pub(super) fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Settings, D::Error> {
    let Section { source, path, poll_interval, overlay, required, xds } = Section::deserialize(deserializer)?;
    let source = match source {
        SourceName::Files => {
            SourceSettings::Files(FileSettings { path: path.unwrap_or_default(), poll_interval })
        }
        SourceName::Xds => {
            let overlay = overlay.map(|path| FileSettings { path, poll_interval });
            SourceSettings::Xds(Box::new(xds.read()), overlay)
        }
    };
    Ok(Settings { source, required })
}

impl XdsSection {
    fn read(self) -> xds::Settings {
        let pair =
            |text: &String| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        xds::Settings {
            url: self.url.unwrap_or_default(),
            node_id: self.node_id,
            node_metadata: self.node_metadata.iter().filter_map(pair).collect(),
            headers: self.headers.iter().filter_map(pair).collect(),
            tls: TlsFiles { ca: self.ca, client: self.cert.zip(self.key), server_name: self.server_name },
            message_bytes_max: usize::try_from(self.max_message).unwrap_or(usize::MAX),
            retry_min: self.retry_min,
            retry_max: self.retry_max,
        }
    }
}

/// The inconsistencies of the section. `value` returns the value of each setting as text; `is_given` tells whether a
/// source other than the defaults has it.
pub(super) fn problems<'v>(value: impl Fn(&str) -> &'v str, is_given: impl Fn(&str) -> bool) -> Vec<String> {
    let is_set = |name: &str| is_given(name) && value(name) != OFF;
    let mut problems = Vec::new();
    if value(SOURCE) != XDS {
        let names = CATALOG.iter().map(|setting| setting.name);
        let of_xds = names.filter(|name| (name.starts_with(PREFIX) || *name == OVERLAY) && is_set(name));
        problems.extend(of_xds.map(|name| format!("{name} needs {SOURCE} {XDS}, which is not set")));
        for missing in CATALOG.iter().filter(|setting| setting.name == PATH && value(PATH) == OFF) {
            let (name, flag, variable) = (missing.name, missing.flag(), missing.variable());
            problems.push(format!("{name}: not set; use --{flag}, {variable} or a settings file"));
        }
        return problems;
    }
    let of_xds = |name: &str| value(&format!("{PREFIX}{name}"));
    if of_xds("url") == OFF {
        problems.push(format!("{SOURCE} {XDS} needs {PREFIX}url, which is not set"));
    }
    problems.extend(lacking(PREFIX, &[("cert", "key"), ("key", "cert")], &value));
    for header in of_xds("headers").split(',').filter(|header| *header != OFF) {
        let (name, value) = header.split_once('=').unwrap_or_default();
        if !xds::is_header(name.trim(), value) {
            problems.push(format!("{PREFIX}headers: `{}` is not a header of gRPC", name.trim()));
        }
    }
    for name in ["ca", "cert", "server_name"] {
        if of_xds(name) != OFF && !of_xds("url").starts_with("https:") {
            problems.push(format!("{PREFIX}{name} needs https:// in {PREFIX}url"));
        }
    }
    problems
}
