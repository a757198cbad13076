//! The settings of the cluster.

use std::time::Duration;

use tollgate_cluster::{ClusterSettings, Files, Trust, TrustError, Tuning, link};

use crate::settings::{catalog::Links, conflicts::Conflicts};

impl Links {
    /// `None` without an address to listen on.
    pub(super) fn read(
        self,
        tuning: Tuning,
        poll_interval: Duration,
        conflicts: &mut Conflicts,
    ) -> Option<ClusterSettings> {
        let Self { listen, advertise, seed: seeds, secret_file, cert, key, ca } = self;
        let listen = listen?;
        let certificates = [("cert", cert.is_some()), ("key", key.is_some()), ("ca", ca.is_some())];
        match certificates.iter().find(|(_, is_set)| *is_set) {
            Some(given) => conflicts.require("cluster.", &certificates.map(|needed| (*given, needed))),
            None if secret_file.is_none() => {
                conflicts.add(format!("cluster.listen: {}", TrustError::NotConfigured));
            }
            None => {}
        }
        let files = cert.zip(key).zip(ca).map(|((cert, key), ca)| Files { cert, key, ca });
        let trust = Trust { files, secret_file, poll_interval };
        Some(ClusterSettings { link: link::LinkSettings { listen, advertise, seeds, trust }, tuning })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::{flags, load, problems};

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
        let ClusterSettings { link, tuning } = cluster;
        assert_eq!(
            (link.listen.to_string().as_str(), link.advertise, link.seeds),
            ("10.0.0.7:8082", None, vec![])
        );
        let Trust { files, secret_file, poll_interval } = link.trust;
        assert_eq!((files, secret_file.unwrap().to_str()), (None, Some("/run/secret")));
        assert_eq!((poll_interval, tuning.forget_after), (Duration::from_secs(7), Duration::from_secs(30)));
        assert_eq!(tuning.forward_budget_max, Duration::from_millis(500));
        assert_eq!(
            (tuning.backup_interval, tuning.lease_from),
            (Some(Duration::from_millis(100)), Some(500))
        );
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
        assert_eq!((cluster.tuning.backup_interval, cluster.tuning.lease_from), (None, None));
    }

    #[test]
    fn settings_without_listen_address_are_refused_one_by_one() {
        assert_eq!(
            problems(&flags(&[SECRET, ("cluster.forget_after", "1m")])),
            [
                "cluster.secret_file needs cluster.listen, which is not set",
                "cluster.forget_after needs cluster.listen, which is not set",
            ]
        );
    }

    #[test]
    fn links_need_secret_or_complete_certificates() {
        let wanted = "cluster.listen: links between replicas need cluster.secret_file, or cluster.cert, cluster.key and cluster.ca";
        assert_eq!(problems(&flags(&[LISTEN])), [wanted]);
        assert_eq!(
            problems(&flags(&[LISTEN, SECRET, ("cluster.key", "k.pem")])),
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
                problems(&flags(&[(name, wrong)])),
                [format!("--{flag}: `{wrong}` is not allowed; {expected} is")]
            );
        }
    }
}
