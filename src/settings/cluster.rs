//! The settings of the cluster.

use crate::{cluster, settings::CATALOG};

/// The path of a setting below [`cluster::Settings`], or the path of the part that is absent because it is not set.
pub(super) enum Path {
    Present(String),
    Absent(&'static str),
}

/// Where a setting is read, if it is one of this section.
pub(super) fn path(setting: &str, is_off: impl Fn(&str) -> bool) -> Option<Path> {
    let name = setting.strip_prefix("cluster.")?;
    if is_off("cluster.listen") {
        return Some(Path::Absent("cluster"));
    }
    let part = match name {
        "listen" | "advertise" | "seed" => "link.",
        "secret_file" => "link.trust.",
        "cert" | "key" | "ca" if is_off("cluster.cert") => {
            return Some(Path::Absent("cluster.link.trust.files"));
        }
        "cert" | "key" | "ca" => "link.trust.files.",
        _ => "",
    };
    Some(Path::Present(format!("cluster.{part}{name}")))
}

/// The inconsistencies of the section. `value` returns the value of each setting as text.
pub(super) fn problems<'v>(value: impl Fn(&str) -> &'v str) -> Vec<String> {
    let section = || CATALOG.iter().filter(|setting| setting.name.starts_with("cluster."));
    let is_set = |name: &str| {
        let setting = section().find(|setting| setting.name == name);
        setting.is_some_and(|setting| setting.default != value(setting.name))
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        cluster::{Files, Trust},
        settings::{Error, Settings, Sources},
    };

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
