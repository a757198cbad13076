//! The TLS configurations of links, made of a certificate and the authorities that are trusted.

use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig, SignatureScheme,
    client::{
        Resumption,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime},
    server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
    version::TLS13,
};
use tollgate_counter::time::{Clock, Timestamp};
use tollgate_net::certificates::SystemTime;

use crate::protocol::{self, VersionMismatch};

/// The TLS configurations of handshakes.
pub(crate) struct TlsConfigs {
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) client: Arc<ClientConfig>,
    /// The configuration for clients of another protocol version: carries this version and authenticates nothing.
    pub(crate) other_version: Arc<ServerConfig>,
    pub(super) created_at: Timestamp,
    pub(super) renew_at: Timestamp,
}

impl TlsConfigs {
    /// The configurations of handshakes with this certificate, which trust these authorities.
    pub(super) fn new(
        pair: CertifiedKey,
        roots: RootCertStore,
        renew_at: Timestamp,
        clock: &Clock,
    ) -> Result<Self, Error> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let time = Arc::new(SystemTime::new(clock.clone()));
        let roots = Arc::new(roots);
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        let pair = Arc::new(SingleCertAndKey::from(pair));

        let mut server = ServerConfig::builder_with_details(provider.clone(), time.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(clients)
            .with_cert_resolver(pair.clone());
        server.alpn_protocols = vec![protocol::alpn()];
        // A resumed TLS session would not present its certificate again, and connections are few and long.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;

        let other_version = other_version(&provider, &time)?;
        let verifier = Arc::new(MemberVerifier { roots, provider: provider.clone() });
        let mut client = ClientConfig::builder_with_details(provider, time)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(pair);
        client.alpn_protocols = vec![protocol::alpn()];
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        Ok(Self {
            server: Arc::new(server),
            client: Arc::new(client),
            other_version: Arc::new(other_version),
            created_at: clock.wall(),
            renew_at,
        })
    }
}

/// The configuration for clients of another version: a self-signed certificate whose name carries this version.
fn other_version(provider: &Arc<CryptoProvider>, time: &Arc<SystemTime>) -> Result<ServerConfig, Error> {
    let failed = |error: rcgen::Error| Error::General(error.to_string());
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed)?;
    let params = CertificateParams::new(vec![protocol::certificate_name()]).map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    ServerConfig::builder_with_details(provider.clone(), time.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
}

/// Accepts a server whose certificate the authority has signed, whatever its names: members are dialled by address.
#[derive(Debug)]
struct MemberVerifier {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for MemberVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        match verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)
        {
            Ok(()) => Ok(ServerCertVerified::assertion()),
            Err(error) => Err(match protocol::version_in_certificate(end_entity) {
                Some(version) => VersionMismatch::with(version).into(),
                None => error,
            }),
        }
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        // The configuration allows TLS 1.3 only.
        Err(Error::General("links between replicas do not support TLS 1.2".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
