//! Certificates for tests, generated at run time.

use std::{fs, path::PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType,
    date_time_ymd,
};
use tempfile::TempDir;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

/// A certificate and its key, in PEM.
#[derive(Clone)]
pub struct Pair {
    pub cert: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2100, 1, 1);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate for a host or client with these host names or URIs, valid until the first day of the year `end`.
    pub fn pair(&self, names: &[&str], end: i32) -> Pair {
        let (uris, hosts): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| name.contains("://"));
        let hosts: Vec<_> = hosts.into_iter().map(str::to_owned).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.subject_alt_names.extend(uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap())));
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(end, 1, 1);
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap().pem();
        Pair { cert, key: key.serialize_pem() }
    }

    /// A certificate for a server on the loopback, valid until 2100.
    pub fn server(&self) -> Pair {
        self.pair(&["localhost", "127.0.0.1"], 2100)
    }
}

/// A directory with the certificate files of a listener.
pub struct Files(pub TempDir);

impl Files {
    pub fn new(pair: &Pair) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        files.replace(pair);
        files
    }

    /// Replaces the pair.
    pub fn replace(&self, pair: &Pair) {
        self.write("tls.key", &pair.key);
        self.write("tls.crt", &pair.cert);
    }

    /// Replaces a file as a whole.
    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.0.path().join("new"), text).unwrap();
        fs::rename(self.0.path().join("new"), self.0.path().join(name)).unwrap();
    }

    pub fn path(&self, name: &str) -> String {
        PathBuf::from(self.0.path()).join(name).to_str().unwrap().to_owned()
    }

    /// The settings of `listener` that name these files.
    pub fn settings(&self, listener: &str) -> Vec<(String, String)> {
        vec![
            (format!("{listener}.tls_cert"), self.path("tls.crt")),
            (format!("{listener}.tls_key"), self.path("tls.key")),
            ("tls.poll_interval".to_owned(), "50ms".to_owned()),
        ]
    }

    /// The same, and clients must present a certificate of `authority`.
    pub fn mutual(&self, listener: &str, authority: &Authority) -> Vec<(String, String)> {
        self.write("ca.crt", &authority.pem);
        let mut settings = self.settings(listener);
        settings.push((format!("{listener}.tls_client_ca"), self.path("ca.crt")));
        settings
    }
}

/// Borrowed settings, as the harness takes them.
pub fn borrowed(settings: &[(String, String)]) -> Vec<(&str, &str)> {
    settings.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

/// A connection over TLS that trusts `authority` and presents `identity`.
pub async fn connect(
    address: impl std::fmt::Display,
    authority: &Authority,
    identity: Option<&Pair>,
) -> Result<Channel, tonic::transport::Error> {
    let mut config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&authority.pem));
    if let Some(pair) = identity {
        config = config.identity(Identity::from_pem(&pair.cert, &pair.key));
    }
    Endpoint::from_shared(format!("https://{address}")).unwrap().tls_config(config).unwrap().connect().await
}
