//! The settings of the rules.

use std::path::PathBuf;

use tollgate_rules::FileSettings;
use tollgate_sources::{
    ClientTlsFiles, RuleLocation, RuleSourceKind, RuleSourceSettings,
    url::{self, Address},
    xds,
};

use crate::settings::{
    catalog::{Rules, RulesUrl, SettingsDraft, Xds},
    conflicts::Conflicts,
};

impl Rules {
    /// Why settings of a source of this kind have no effect; `None` if it is the one that is read.
    pub(super) fn unread(&self, kind: RuleSourceKind) -> Option<&'static str> {
        let is_url = matches!(self.path, Some(RuleLocation::Url(_)));
        match (kind, self.source) {
            (RuleSourceKind::Url, RuleSourceKind::Files) if is_url => None,
            (RuleSourceKind::Url, _) => Some("needs a URL in rules.path, which is not set"),
            (RuleSourceKind::Xds, source) if source != kind => {
                Some("needs rules.source xds, which is not set")
            }
            (RuleSourceKind::Files | RuleSourceKind::Xds, _) => None,
        }
    }
}

impl SettingsDraft {
    /// The source of the rules.
    pub(super) fn rule_source(&self, conflicts: &mut Conflicts) -> RuleSourceSettings {
        let Rules { source, path, poll_interval, required, overlay } = self.rules.clone();
        let file = |path| FileSettings { path, poll_interval };
        let source = match source {
            // A file may be at a URL.
            RuleSourceKind::Files | RuleSourceKind::Url => {
                if overlay.is_some() {
                    conflicts.add("rules.overlay needs rules.source xds, which is not set");
                }
                if path.is_none() {
                    conflicts
                        .add("rules.path: not set; use --rules, TOLLGATE_RULES__PATH or a settings file");
                }
                match path {
                    Some(RuleLocation::Url(address)) => tollgate_sources::SourceSettings::Url(Box::new(
                        self.url.clone().read("rules.path", address, conflicts),
                    )),
                    Some(RuleLocation::Path(path)) => tollgate_sources::SourceSettings::Files(file(path)),
                    None => tollgate_sources::SourceSettings::Files(file(PathBuf::new())),
                }
            }
            RuleSourceKind::Xds => tollgate_sources::SourceSettings::Xds(
                Box::new(self.xds.clone().read(conflicts)),
                overlay.map(file),
            ),
        };
        RuleSourceSettings { source, required, path_must_exist: required }
    }
}

impl RulesUrl {
    /// How the address is asked for that the setting `name` has.
    pub(super) fn read(self, name: &str, address: Address, conflicts: &mut Conflicts) -> url::UrlSettings {
        if !address.is_tls() && !address.is_loopback() && !self.plaintext {
            conflicts.add(format!(
                "{name}: {address} needs https://, a loopback address, or rules.url.plaintext true: anyone on the way can change the rules"
            ));
        }
        let files = ClientTlsFiles { ca: self.ca, client: None, server_name: self.server_name };
        let tls = tls_files("rules.url.", files, self.cert, self.key, name, address.is_tls(), conflicts);
        url::UrlSettings {
            address,
            interval: self.interval,
            timeout: self.timeout,
            bytes_max: usize::try_from(self.max_bytes).unwrap_or(usize::MAX),
            tls,
            token_file: self.token_file,
            redirects_max: self.redirects,
            plaintext: self.plaintext,
            copy: self.copy,
        }
    }
}

impl Xds {
    fn read(self, conflicts: &mut Conflicts) -> xds::XdsSettings {
        if self.url.is_none() {
            conflicts.add("rules.source xds needs rules.xds.url, which is not set");
        }
        let url = self.url.unwrap_or_default();
        for (name, _) in self.headers.iter().filter(|(name, value)| !xds::is_header(name, value)) {
            conflicts.add(format!("rules.xds.headers: `{name}` is not a header of gRPC"));
        }
        let is_tls = url.starts_with("https:");
        let files = ClientTlsFiles { ca: self.ca, client: None, server_name: self.server_name };
        let tls = tls_files("rules.xds.", files, self.cert, self.key, "rules.xds.url", is_tls, conflicts);
        xds::XdsSettings {
            url,
            node_id: self.node_id,
            node_metadata: self.node_metadata,
            headers: self.headers,
            tls,
            message_bytes_max: usize::try_from(self.max_message).unwrap_or(usize::MAX),
            retry_min: self.retry_min,
            retry_max: self.retry_max,
        }
    }
}

/// The files with the certificate and key of the client. The names of the settings begin with `prefix`; they need an
/// https URL in the setting `address`.
fn tls_files(
    prefix: &str,
    files: ClientTlsFiles,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    address: &str,
    is_tls: bool,
    conflicts: &mut Conflicts,
) -> ClientTlsFiles {
    let [has_cert, has_key] = [("cert", cert.is_some()), ("key", key.is_some())];
    conflicts.require(prefix, &[(has_cert, has_key), (has_key, has_cert)]);
    let of_tls = [("ca", files.ca.is_some()), has_cert, ("server_name", files.server_name.is_some())];
    for (name, _) in of_tls.iter().filter(|(_, is_set)| *is_set && !is_tls) {
        conflicts.add(format!("{prefix}{name} needs https:// in {address}"));
    }
    ClientTlsFiles { client: cert.zip(key), ..files }
}

#[cfg(test)]
mod tests {
    use tollgate_sources::{RuleSourceKind, SourceSettings};

    use crate::{
        api::admin::SettingOrigin,
        settings::tests::{flags, load, problems},
    };

    const URL: &str = "https://rules.example/edge.yaml";

    #[test]
    fn rules_path_with_a_scheme_is_a_url() {
        let settings = load(&[("rules.path", URL), ("rules.url.interval", "5s")]).unwrap();
        assert_eq!(settings.rules.source.described(), (RuleSourceKind::Url, URL.to_owned()));
        assert!(matches!(load(&[("rules.path", "rules")]).unwrap().rules.source, SourceSettings::Files(_)));
    }

    #[test]
    fn secrets_of_a_rules_url_are_not_shown() {
        let settings = load(&[("rules.path", &format!("{URL}?sig=hush"))]).unwrap();
        let given = settings.given.iter().find(|setting| setting.name == "rules.path").unwrap();
        assert_eq!((given.value.as_str(), given.from), (&*format!("{URL}?(not shown)"), SettingOrigin::Flag));
        assert!(!format!("{settings:?}").contains("hush"));
        let refused = problems(&flags(&[("rules.path", "https://user:secret@host/")]));
        assert!(refused[0].starts_with("--rules: `https://(not shown)` is not allowed"), "{refused:?}");
    }

    #[test]
    fn settings_of_a_rules_url_without_one_are_refused() {
        let without = problems(&flags(&[("rules.url.redirects", "1")]));
        assert_eq!(without, ["rules.url.redirects needs a URL in rules.path, which is not set"]);
    }

    #[test]
    fn settings_of_a_rules_url_that_disagree_are_refused() {
        let of = |more: &[(&str, &str)]| problems(&flags(more));
        let half = of(&[("rules.path", URL), ("rules.url.cert", "a.pem")]);
        assert_eq!(half, ["rules.url.cert needs rules.url.key, which is not set"]);
        let plain = of(&[("rules.path", "http://127.0.0.1:1/"), ("rules.url.ca", "a.pem")]);
        assert_eq!(plain, ["rules.url.ca needs https:// in rules.path"]);
        let far = of(&[("rules.path", "http://rules.example/")]);
        assert!(far[0].starts_with("rules.path: http://rules.example/ needs https://"), "{far:?}");
        assert!(load(&[("rules.path", "http://rules.example/"), ("rules.url.plaintext", "true")]).is_ok());
        let soon = of(&[("rules.path", URL), ("rules.url.interval", "999ms")]);
        assert!(soon[0].starts_with("--rules-url-interval: `999ms` is not allowed"), "{soon:?}");
    }
}
