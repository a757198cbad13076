//! The settings of the cluster.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use serde::{Deserialize, Deserializer};

use crate::{
    cluster::{self, Files, Trust, link},
    settings::{CATALOG, OFF, Setting, duration, path_or_off, value_type},
};

/// The value for an address that is determined at run time.
const AUTO: &str = "auto";

/// The section as written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSettings {
    #[serde(deserialize_with = "or_off")]
    listen: Option<SocketAddr>,
    advertise: String,
    seed: String,
    secret_file: PathBuf,
    cert: PathBuf,
    key: PathBuf,
    ca: PathBuf,
    #[serde(deserialize_with = "duration")]
    forward_budget_max: Duration,
    backup_interval: String,
    #[serde(deserialize_with = "duration")]
    forget_after: Duration,
    #[serde(deserialize_with = "or_off")]
    lease_from: Option<u64>,
}

impl RawSettings {
    /// `None` for a single replica. [`problems`] has already checked that the settings are consistent.
    pub(super) fn read(self, poll_interval: Duration) -> Option<cluster::Settings> {
        let files = match (path_or_off(self.cert), path_or_off(self.key), path_or_off(self.ca)) {
            (Some(cert), Some(key), Some(ca)) => Some(Files { cert, key, ca }),
            (_, _, _) => None,
        };
        Some(cluster::Settings {
            link: link::Settings {
                listen: self.listen?,
                advertise: Some(self.advertise).filter(|address| address != AUTO),
                seeds: host_ports(&self.seed).unwrap_or_default(),
                trust: Trust { files, secret_file: path_or_off(self.secret_file), poll_interval },
            },
            forward_budget_max: self.forward_budget_max,
            backup_interval: value_type::duration(&self.backup_interval),
            forget_after: self.forget_after,
            lease_from: self.lease_from,
        })
    }
}

/// The inconsistencies of the section. `value` returns the value of each setting.
pub(super) fn problems(value: impl Fn(&Setting) -> String) -> Vec<String> {
    let section = || CATALOG.iter().filter(|setting| setting.name.starts_with("cluster."));
    let is_set = |name: &str| {
        let setting = section().find(|setting| setting.name == name);
        setting.is_some_and(|setting| setting.default != Some(&value(setting)))
    };
    if !is_set("cluster.listen") {
        let idle = section().filter(|setting| is_set(setting.name)).map(|setting| setting.name);
        return idle.map(|name| format!("{name} needs cluster.listen, which is not set")).collect();
    }
    let certificates = ["cluster.cert", "cluster.key", "cluster.ca"];
    let (there, lacking): (Vec<&str>, Vec<&str>) = certificates.into_iter().partition(|name| is_set(name));
    if there.is_empty() && !is_set("cluster.secret_file") {
        return vec![format!("cluster.listen: {}", cluster::TrustError::NotConfigured)];
    }
    let needs = |(given, needed): (&str, &str)| format!("{given} needs {needed}, which is not set");
    there.first().into_iter().flat_map(|given| lacking.iter().map(|needed| needs((given, needed)))).collect()
}

/// Parses a comma list of `HOST:PORT`, or `off`.
pub(super) fn host_ports(text: &str) -> Option<Vec<String>> {
    if text == OFF {
        return Some(Vec::new());
    }
    let place = |place: &str| link::is_host_port(place).then(|| place.to_owned());
    text.split(',').map(str::trim).map(place).collect()
}

/// Whether a value may be advertised to other replicas.
pub(super) fn can_be_advertised(text: &str) -> bool {
    match text.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        // A replica that connects to a wildcard address reaches itself.
        Ok(address) => !address.is_unspecified(),
        Err(_) => text == AUTO || link::is_host_port(text),
    }
}

/// Parses a value that may be `off`.
fn or_off<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: std::str::FromStr<Err: std::fmt::Display>,
    D: Deserializer<'de>,
{
    let text = String::deserialize(deserializer)?;
    if text == OFF { Ok(None) } else { text.parse().map(Some).map_err(serde::de::Error::custom) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{Error, Settings, Sources};

    fn load(given: &[(&str, &str)]) -> Result<Settings, Error> {
        let flag = |(name, value): &(&str, &str)| {
            let setting = CATALOG.iter().find(|setting| setting.name == *name).unwrap();
            (setting, (*value).to_owned())
        };
        let flags = [("rules.path", "rules.yaml")].iter().chain(given).map(flag).collect();
        Sources { flags, ..Sources::default() }.load()
    }

    fn load_problems(given: &[(&str, &str)]) -> Vec<String> {
        match load(given) {
            Err(Error::Wrong(problems)) => problems,
            other => panic!("{other:?}"),
        }
    }

    const LISTEN: (&str, &str) = ("cluster.listen", "10.0.0.7:8082");
    const SECRET: (&str, &str) = ("cluster.secret_file", "/run/secret");

    #[test]
    fn no_cluster_without_listen_address() {
        assert!(load(&[]).unwrap().cluster.is_none());
        assert!(load(&[("cluster.seed", "off"), ("cluster.lease_from", "500")]).unwrap().cluster.is_none());
    }

    #[test]
    fn listen_address_and_secret_suffice_for_a_cluster() {
        let cluster = load(&[LISTEN, SECRET, ("tls.poll_interval", "7s")]).unwrap().cluster.unwrap();
        let cluster::Settings { link, forward_budget_max, backup_interval, forget_after, lease_from } =
            cluster;
        assert_eq!(
            (link.listen.to_string().as_str(), link.advertise, link.seeds),
            ("10.0.0.7:8082", None, vec![])
        );
        let Trust { files, secret_file, poll_interval } = link.trust;
        assert_eq!((files, secret_file.unwrap().to_str()), (None, Some("/run/secret")));
        assert_eq!((poll_interval, forget_after), (Duration::from_secs(7), Duration::from_secs(30)));
        assert_eq!(forward_budget_max, Duration::from_millis(500));
        assert_eq!((backup_interval, lease_from), (Some(Duration::from_millis(100)), Some(500)));
    }

    #[test]
    fn off_is_none_and_seeds_are_a_list() {
        let given = [
            LISTEN,
            ("cluster.cert", "c.pem"),
            ("cluster.key", "k.pem"),
            ("cluster.ca", "a.pem"),
            ("cluster.seed", "tollgate:8082, [fd00::7]:1"),
            ("cluster.advertise", "10.0.0.8"),
            ("cluster.backup_interval", "off"),
            ("cluster.lease_from", "off"),
        ];
        let cluster = load(&given).unwrap().cluster.unwrap();
        assert_eq!(cluster.link.seeds, ["tollgate:8082", "[fd00::7]:1"]);
        assert_eq!(cluster.link.advertise.as_deref(), Some("10.0.0.8"));
        let files = Files { cert: "c.pem".into(), key: "k.pem".into(), ca: "a.pem".into() };
        assert_eq!((cluster.link.trust.files, cluster.link.trust.secret_file), (Some(files), None));
        assert_eq!((cluster.backup_interval, cluster.lease_from), (None, None));
    }

    #[test]
    fn settings_without_listen_address_are_refused_one_by_one() {
        assert_eq!(
            load_problems(&[SECRET, ("cluster.forget_after", "1m")]),
            [
                "cluster.secret_file needs cluster.listen, which is not set",
                "cluster.forget_after needs cluster.listen, which is not set",
            ]
        );
    }

    #[test]
    fn links_need_secret_or_complete_certificates() {
        let wanted = "cluster.listen: links between replicas need cluster.secret_file, or cluster.cert, cluster.key and cluster.ca";
        assert_eq!(load_problems(&[LISTEN]), [wanted]);
        assert_eq!(
            load_problems(&[LISTEN, SECRET, ("cluster.key", "k.pem")]),
            [
                "cluster.key needs cluster.cert, which is not set",
                "cluster.key needs cluster.ca, which is not set",
            ]
        );
    }

    #[test]
    fn invalid_value_is_reported_with_accepted_values_in_cluster() {
        for (name, wrong, expected) in [
            (
                "cluster.listen",
                "8082",
                "an IP address and a port, as in 127.0.0.1:8081 or [::1]:8081, or off",
            ),
            ("cluster.advertise", "replica-1", "HOST:PORT, an IP address, or auto"),
            ("cluster.advertise", "0.0.0.0", "HOST:PORT, an IP address, or auto"),
            ("cluster.seed", "a:1,b", "HOST:PORT, several separated by commas, or off"),
            ("cluster.forward_budget_max", "0s", "a duration from 1ms to 60s"),
            ("cluster.backup_interval", "1ms", "a duration from 20ms to 10s, or off"),
            ("cluster.forget_after", "1s", "a duration from 2s to 3600s"),
            ("cluster.lease_from", "0", "a number from 1 to 1000000, or off"),
        ] {
            let flag = name.replace(['.', '_'], "-");
            assert_eq!(
                load_problems(&[(name, wrong)]),
                [format!("--{flag}: `{wrong}` is not allowed; {expected} is")]
            );
        }
    }
}
