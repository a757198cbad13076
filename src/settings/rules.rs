//! The settings of the rules.

use tollgate_limiter::rules::FileSettings;

use crate::{
    rule_source::{
        self, Settings,
        xds::{self, TlsFiles},
    },
    settings::{
        catalog::{Rules, Xds},
        conflicts::Conflicts,
        value_type::Source,
    },
};

impl Rules {
    pub(super) fn read(self, xds: Xds, conflicts: &mut Conflicts) -> Settings {
        let Self { source, path, poll_interval, required, overlay } = self;
        let file = |path| FileSettings { path, poll_interval };
        let source = match source {
            Source::Files => {
                if overlay.is_some() {
                    conflicts.add("rules.overlay needs rules.source xds, which is not set");
                }
                if path.is_none() {
                    conflicts
                        .add("rules.path: not set; use --rules, TOLLGATE_RULES__PATH or a settings file");
                }
                rule_source::Source::Files(file(path.unwrap_or_default()))
            }
            Source::Xds => rule_source::Source::Xds(Box::new(xds.read(conflicts)), overlay.map(file)),
        };
        Settings { source, required }
    }
}

impl Xds {
    fn read(self, conflicts: &mut Conflicts) -> xds::Settings {
        if self.url.is_none() {
            conflicts.add("rules.source xds needs rules.xds.url, which is not set");
        }
        let url = self.url.unwrap_or_default();
        let [cert, key] = [("cert", self.cert.is_some()), ("key", self.key.is_some())];
        conflicts.require("rules.xds.", &[(cert, key), (key, cert)]);
        for (name, _) in self.headers.iter().filter(|(name, value)| !xds::is_header(name, value)) {
            conflicts.add(format!("rules.xds.headers: `{name}` is not a header of gRPC"));
        }
        let of_tls = [("ca", self.ca.is_some()), cert, ("server_name", self.server_name.is_some())];
        for (name, _) in of_tls.iter().filter(|(_, is_set)| *is_set && !url.starts_with("https:")) {
            conflicts.add(format!("rules.xds.{name} needs https:// in rules.xds.url"));
        }
        xds::Settings {
            url,
            node_id: self.node_id,
            node_metadata: self.node_metadata,
            headers: self.headers,
            tls: TlsFiles { ca: self.ca, client: self.cert.zip(self.key), server_name: self.server_name },
            message_bytes_max: usize::try_from(self.max_message).unwrap_or(usize::MAX),
            retry_min: self.retry_min,
            retry_max: self.retry_max,
        }
    }
}
