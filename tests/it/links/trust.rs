//! Which replicas are accepted as members, and which are refused.

use std::{
    fs,
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    sync::{Arc, Mutex},
    time::Duration,
};

use rustls::{
    ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tollgate_cluster::{
    Files, MemberId, Trust,
    link::{LinkFailure, LinkListener, LinkSettings, Strangers},
};
use tollgate_counter::time::{Clock, SECOND, Timestamp};

use crate::{
    certificates::{self, Authority},
    harness::{START, until},
    links::replica::{Replica, SECRET, secrets, settings, trust},
    log::Log,
};

const OTHER: &str = "another secret that replicas share";

/// A replica with these secrets in its file.
async fn with_secrets(lines: &str, seeds: &[&str]) -> (TempDir, Replica) {
    let (folder, file) = secrets(lines);
    let replica = Replica::start_with(
        settings(trust(file), seeds),
        MemberId::starting_at(Timestamp::EPOCH),
        Clock::system(),
    );
    (folder, replica.await)
}

async fn with_clock(clock: &Clock, seeds: &[&str]) -> Replica {
    let (_folder, file) = secrets(SECRET);
    Replica::start_with(settings(trust(file), seeds), MemberId::starting_at(Timestamp::EPOCH), clock.clone())
        .await
}

async fn until_refused(replica: &Replica, reason: LinkFailure) {
    until(async || (replica.links.stats().failures(reason) > 0).then_some(())).await;
}

#[tokio::test]
async fn replica_with_other_secret_is_rejected_on_both_sides() {
    let (_folder, one) = with_secrets(SECRET, &[]).await;
    let (_folder, stranger) = with_secrets(OTHER, &[&one.address()]).await;
    until_refused(&stranger, LinkFailure::Untrusted).await;
    until_refused(&one, LinkFailure::ByPeer).await;
    one.links.dial(&stranger.address());
    until_refused(&one, LinkFailure::Untrusted).await;
    assert_eq!((one.events(), stranger.events()), (vec![], vec![]));
}

#[tokio::test]
async fn secret_is_replaced_in_three_rollouts() {
    let rolls = ["old secret of replicas\n", "old secret of replicas\nnew secret of replicas\n"];
    let rolls =
        [rolls[0], rolls[1], "new secret of replicas\nold secret of replicas\n", "new secret of replicas\n"];
    for pair in rolls.windows(2) {
        let (_folder, one) = with_secrets(pair[0], &[]).await;
        let (_folder, two) = with_secrets(pair[1], &[&one.address()]).await;
        one.until_linked(&two).await;
        let (_folder, three) = with_secrets(pair[0], &[&two.address()]).await;
        two.until_linked(&three).await;
    }
    let (_folder, one) = with_secrets(rolls[0], &[]).await;
    let (_folder, two) = with_secrets(rolls[3], &[&one.address()]).await;
    until_refused(&two, LinkFailure::Untrusted).await;
}

#[tokio::test]
async fn changed_secret_file_applies_to_next_connection() {
    let (folder, one) = with_secrets(SECRET, &[]).await;
    // A part of a line, and then the whole file.
    fs::write(folder.path().join("secrets"), "short").unwrap();
    fs::write(folder.path().join("new"), format!("# the new one\n\n  {OTHER}  \n")).unwrap();
    fs::rename(folder.path().join("new"), folder.path().join("secrets")).unwrap();
    let (_folder, two) = with_secrets(OTHER, &[&one.address()]).await;
    one.until_linked(&two).await;
    let (_folder, three) = with_secrets(SECRET, &[&one.address()]).await;
    until_refused(&three, LinkFailure::Untrusted).await;
}

#[tokio::test]
async fn expired_certificate_is_refused() {
    let one = with_clock(&Clock::manual(START), &[]).await;
    let late = with_clock(&Clock::manual(START.minus(25 * 3_600 * SECOND)), &[]).await;
    one.links.dial(&late.address());
    until_refused(&one, LinkFailure::Expired).await;
    assert_eq!(one.events(), []);
}

#[tokio::test]
async fn replicas_link_with_clocks_almost_an_hour_apart() {
    let one = with_clock(&Clock::manual(START), &[]).await;
    let late = with_clock(&Clock::manual(START.minus(3_500 * SECOND)), &[&one.address()]).await;
    one.until_linked(&late).await;
}

#[tokio::test]
async fn replica_renews_certificate_before_expiry() {
    let clock = Clock::manual(START);
    let one = with_clock(&clock, &[]).await;
    clock.set(after(START, Duration::from_secs(30 * 3_600)));
    let two = with_clock(&clock, &[&one.address()]).await;
    one.until_linked(&two).await;
}

fn after(start: Timestamp, time: Duration) -> Timestamp {
    start.plus(u64::try_from(time.as_nanos()).unwrap())
}

#[tokio::test]
async fn connection_without_tls_is_refused_and_counted() {
    let one = Replica::start(&[]).await;
    let mut stranger = TcpStream::connect(one.listen).await.unwrap();
    stranger.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    until_refused(&one, LinkFailure::NotTls).await;
    let mut received = Vec::new();
    let _ = stranger.read_to_end(&mut received).await;
    assert!(received.len() < 16, "at most an alert is sent");
    let silent = TcpStream::connect(one.listen).await.unwrap();
    until_refused(&one, LinkFailure::Slow).await;
    drop(silent);
}

const LOCALHOST: &str = "localhost";

/// Accepts any certificate, and keeps it.
#[derive(Debug, Default)]
struct CapturedCertificate(Mutex<Vec<u8>>);

impl ServerCertVerifier for CapturedCertificate {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        *self.0.lock().unwrap() = end_entity.to_vec();
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

/// A client without a certificate that offers this protocol, and the certificate that it receives.
fn untrusted_client(protocol: &[u8]) -> (TlsConnector, Arc<CapturedCertificate>) {
    let shown = Arc::new(CapturedCertificate::default());
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(shown.clone())
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    (TlsConnector::from(Arc::new(config)), shown)
}

fn logs_both_versions(log: &Log, theirs: u32) -> bool {
    let expected =
        format!("the peer speaks tollgate-cluster/{theirs}, this replica speaks tollgate-cluster/7");
    log.take().iter().any(|line| line.contains(&expected) && line.contains("version"))
}

#[tokio::test]
async fn client_of_other_version_is_refused_and_shown_own_version() {
    let log = Log::text();
    let one = Replica::start(&[]).await;
    let (client, shown) = untrusted_client(b"tollgate-cluster/1");
    let socket = TcpStream::connect(one.listen).await.unwrap();
    let mut stream = client.connect(LOCALHOST.try_into().unwrap(), socket).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    assert!(matches!(stream.read(&mut [0; 16]).await, Ok(0) | Err(_)), "the server sends nothing");
    let shown = CertificateDer::from(shown.0.lock().unwrap().clone());
    let shown = webpki::EndEntityCert::try_from(&shown).unwrap();
    assert_eq!(shown.valid_dns_names().collect::<Vec<_>>(), ["protocol-7.tollgate.invalid"]);
    until_refused(&one, LinkFailure::Version).await;
    assert!(logs_both_versions(&log, 1));
}

#[tokio::test]
async fn server_of_other_version_is_refused_and_both_are_logged() {
    let log = Log::text();
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["protocol-7.tollgate.invalid".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap().der().clone();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key.serialize_der().try_into().unwrap())
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let acceptor = TlsAcceptor::from(Arc::new(config));
        while let Ok((socket, _)) = listener.accept().await {
            let _ = acceptor.accept(socket).await;
        }
    });
    let one = Replica::start(&[]).await;
    one.links.dial(&address.to_string());
    until_refused(&one, LinkFailure::Version).await;
    assert!(logs_both_versions(&log, 7));
    let named = format!("{address} (version)");
    let expected = Strangers { named, has_other_version: true, has_former_peer: false };
    assert_eq!(one.links.strangers(), Some(expected));
}

#[tokio::test]
async fn world_readable_secret_file_logs_a_warning() {
    let log = Log::text();
    for (mode, warned) in [(0o600, false), (0o440, false), (0o644, true)] {
        let (_folder, file) = secrets(SECRET);
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let settings = settings(trust(file), &[]);
        let _one =
            Replica::start_with(settings, MemberId::starting_at(Timestamp::EPOCH), Clock::system()).await;
        let warning =
            log.take().into_iter().find(|line| line.contains("readable for every user of this machine"));
        assert_eq!(warning.is_some(), warned, "{mode:o}: {warning:?}");
    }
}

/// Configured certificates of this authority.
fn trust_of(authority: &Authority) -> (certificates::Files, Trust) {
    let files = certificates::Files::new(&authority.server());
    files.write("ca.crt", &authority.pem);
    let [cert, key, ca] = ["tls.crt", "tls.key", "ca.crt"].map(|name| files.path(name).into());
    let poll_interval = Duration::from_millis(50);
    (files, Trust { files: Some(Files { cert, key, ca }), secret_file: None, poll_interval })
}

async fn start_trusting(trust: &Trust, seeds: &[&str]) -> Replica {
    Replica::start_with(
        settings(trust.clone(), seeds),
        MemberId::starting_at(Timestamp::EPOCH),
        Clock::system(),
    )
    .await
}

#[tokio::test]
async fn certificate_of_configured_authority_grants_membership() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let ((files, trust), (_files, others)) = (trust_of(&ours), trust_of(&theirs));
    let one = start_trusting(&trust, &[]).await;
    let two = start_trusting(&trust, &[&one.address()]).await;
    one.until_linked(&two).await;
    let stranger = start_trusting(&others, &[&one.address()]).await;
    until_refused(&stranger, LinkFailure::Untrusted).await;
    until_refused(&one, LinkFailure::ByPeer).await;

    // After a change to the other authority, the stranger is accepted.
    files.replace(&theirs.server());
    files.write("ca.crt", &theirs.pem);
    one.until_linked(&stranger).await;
}

#[tokio::test]
async fn connection_without_certificate_is_refused() {
    let authority = Authority::new("ours");
    let (_files, trust) = trust_of(&authority);
    let one = start_trusting(&trust, &[]).await;
    let (client, _shown) = untrusted_client(b"tollgate-cluster/7");
    let socket = TcpStream::connect(one.listen).await.unwrap();
    let mut stream = client.connect(LOCALHOST.try_into().unwrap(), socket).await.unwrap();
    stream.read_to_end(&mut Vec::new()).await.unwrap_err();
    until_refused(&one, LinkFailure::NoCertificate).await;
}

/// The error of a bind with these settings.
async fn bind_error(settings: LinkSettings) -> String {
    LinkListener::bind(settings, MemberId::starting_at(Timestamp::EPOCH), Clock::system())
        .await
        .unwrap_err()
        .to_string()
}

#[tokio::test]
async fn bind_without_secret_or_certificates_names_missing_settings() {
    let nothing = Trust { files: None, secret_file: None, poll_interval: Duration::from_secs(1) };
    let why = bind_error(settings(nothing, &[])).await;
    assert!(why.contains("cluster.secret_file") && why.contains("cluster.cert"), "{why}");
    for (lines, expected) in [
        (
            "# comment\n\nshort\n",
            "line 3: a secret needs at least 16 bytes and 8 distinct ones; create one with `openssl rand -base64 32`",
        ),
        (
            "aaaaaaaaaaaaaaaa",
            "line 1: a secret needs at least 16 bytes and 8 distinct ones; create one with `openssl rand -base64 32`",
        ),
        ("# nothing but a comment, which is long enough\n", "the file contains no secret"),
    ] {
        let (_folder, file) = secrets(lines);
        let why = bind_error(settings(trust(file.clone()), &[])).await;
        assert_eq!(why, format!("cluster.secret_file: {}: {expected}", file.display()));
    }
    let why = bind_error(settings(trust("/nowhere/secrets".into()), &[])).await;
    assert!(why.starts_with("cluster.secret_file: /nowhere/secrets: "), "{why}");
}

#[tokio::test]
async fn debug_output_contains_no_secret() {
    let (_folder, one) = with_secrets(SECRET, &[]).await;
    assert!(!format!("{:?}", one.links).contains("secret that"), "{:?}", one.links);
}
