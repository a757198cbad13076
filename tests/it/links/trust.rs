//! Who is let in, and who is not.

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
use tollgate::{
    cluster::{
        Files, MemberId, Trust,
        link::{LinkFailure, Links, Settings},
    },
    time::{Clock, SECOND, Timestamp},
};

use crate::{
    certificates::{self, Authority},
    harness::{START, until},
    links::replica::{Replica, SECRET, secrets, settings, trust},
    reload::Log,
};

const OTHER: &str = "another secret that replicas share";

/// A process with these secrets in its file.
async fn with_secrets(lines: &str, seeds: &[&str]) -> (TempDir, Replica) {
    let (folder, file) = secrets(lines);
    let replica = Replica::start_with(settings(trust(file), seeds), MemberId::random(), Clock::system());
    (folder, replica.await)
}

async fn with_clock(clock: &Clock, seeds: &[&str]) -> Replica {
    let (_folder, file) = secrets(SECRET);
    Replica::start_with(settings(trust(file), seeds), MemberId::random(), clock.clone()).await
}

async fn until_refused(replica: &Replica, reason: LinkFailure) {
    until(async || (0 < replica.links.stats().failures(reason)).then_some(())).await;
}

#[tokio::test]
async fn without_the_secret_nobody_is_let_in_and_nobody_is_trusted() {
    let (_folder, one) = with_secrets(SECRET, &[]).await;
    let (_folder, stranger) = with_secrets(OTHER, &[&one.address()]).await;
    until_refused(&stranger, LinkFailure::Untrusted).await;
    until_refused(&one, LinkFailure::ByPeer).await;
    one.links.dial(&stranger.address());
    until_refused(&one, LinkFailure::Untrusted).await;
    assert_eq!((one.events(), stranger.events()), (vec![], vec![]));
}

#[tokio::test]
async fn a_secret_is_replaced_in_three_rolls() {
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
async fn a_file_of_secrets_that_changes_holds_for_the_next_connection() {
    let (folder, one) = with_secrets(SECRET, &[]).await;
    // Half a line, and then all of it.
    fs::write(folder.path().join("secrets"), "short").unwrap();
    fs::write(folder.path().join("new"), format!("# the new one\n\n  {OTHER}  \n")).unwrap();
    fs::rename(folder.path().join("new"), folder.path().join("secrets")).unwrap();
    let (_folder, two) = with_secrets(OTHER, &[&one.address()]).await;
    one.until_linked(&two).await;
    let (_folder, three) = with_secrets(SECRET, &[&one.address()]).await;
    until_refused(&three, LinkFailure::Untrusted).await;
}

#[tokio::test]
async fn a_certificate_that_has_expired_is_refused() {
    let one = with_clock(&Clock::manual(START), &[]).await;
    let late = with_clock(&Clock::manual(START.minus(25 * 3_600 * SECOND)), &[]).await;
    one.links.dial(&late.address());
    until_refused(&one, LinkFailure::Expired).await;
    assert_eq!(one.events(), []);
}

#[tokio::test]
async fn clocks_may_be_almost_an_hour_apart() {
    let one = with_clock(&Clock::manual(START), &[]).await;
    let late = with_clock(&Clock::manual(START.minus(3_500 * SECOND)), &[&one.address()]).await;
    one.until_linked(&late).await;
}

#[tokio::test]
async fn a_process_renews_its_certificate_before_it_expires() {
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
async fn who_speaks_no_tls_is_refused_and_counted() {
    let one = Replica::start(&[]).await;
    let mut stranger = TcpStream::connect(one.listen).await.unwrap();
    stranger.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    until_refused(&one, LinkFailure::NotTls).await;
    let mut said = Vec::new();
    stranger.read_to_end(&mut said).await.ok();
    assert!(said.len() < 16, "nothing but an alert");
    let silent = TcpStream::connect(one.listen).await.unwrap();
    until_refused(&one, LinkFailure::Slow).await;
    drop(silent);
}

const LOCALHOST: &str = "localhost";

/// Takes any certificate, and keeps it.
#[derive(Debug, Default)]
struct Shown(Mutex<Vec<u8>>);

impl ServerCertVerifier for Shown {
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

/// A client without a certificate that offers this protocol, and what it is shown.
fn stranger(protocol: &[u8]) -> (TlsConnector, Arc<Shown>) {
    let shown = Arc::new(Shown::default());
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(shown.clone())
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    (TlsConnector::from(Arc::new(config)), shown)
}

fn says_both_versions(log: &Log, theirs: u32) -> bool {
    let told = format!("the peer speaks tollgate-cluster/{theirs}, this replica speaks tollgate-cluster/2");
    log.take().iter().any(|line| line.contains(&told) && line.contains("version"))
}

#[tokio::test]
async fn client_of_another_version_is_refused_and_told_ours() {
    let log = Log::start();
    let one = Replica::start(&[]).await;
    let (client, shown) = stranger(b"tollgate-cluster/1");
    let socket = TcpStream::connect(one.listen).await.unwrap();
    let mut stream = client.connect(LOCALHOST.try_into().unwrap(), socket).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    assert!(matches!(stream.read(&mut [0; 16]).await, Ok(0) | Err(_)), "nothing is spoken");
    let shown = CertificateDer::from(shown.0.lock().unwrap().clone());
    let shown = webpki::EndEntityCert::try_from(&shown).unwrap();
    assert_eq!(shown.valid_dns_names().collect::<Vec<_>>(), ["protocol-2.tollgate.invalid"]);
    until_refused(&one, LinkFailure::Version).await;
    assert!(says_both_versions(&log, 1));
}

#[tokio::test]
async fn server_of_another_version_is_refused_and_both_are_logged() {
    let log = Log::start();
    let key = rcgen::KeyPair::generate().unwrap();
    let params = rcgen::CertificateParams::new(vec!["protocol-3.tollgate.invalid".to_owned()]).unwrap();
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
            acceptor.accept(socket).await.ok();
        }
    });
    let one = Replica::start(&[]).await;
    one.links.dial(&address.to_string());
    until_refused(&one, LinkFailure::Version).await;
    assert!(says_both_versions(&log, 3));
    assert_eq!(one.links.rejected(), Some(format!("{address} (version)")));
}

#[tokio::test]
async fn secret_file_that_all_can_read_is_warned_of() {
    let log = Log::start();
    for (mode, warned) in [(0o600, false), (0o440, false), (0o644, true)] {
        let (_folder, file) = secrets(SECRET);
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
        let settings = settings(trust(file), &[]);
        let _one = Replica::start_with(settings, MemberId::random(), Clock::system()).await;
        let warning =
            log.take().into_iter().find(|line| line.contains("readable for every user of this machine"));
        assert_eq!(warning.is_some(), warned, "{mode:o}: {warning:?}");
    }
}

/// The operator's certificates, by this authority.
fn by(authority: &Authority) -> (certificates::Files, Trust) {
    let files = certificates::Files::of(&authority.server());
    files.write("ca.crt", &authority.pem);
    let [cert, key, ca] = ["tls.crt", "tls.key", "ca.crt"].map(|name| files.path(name).into());
    let poll_interval = Duration::from_millis(50);
    (files, Trust { files: Some(Files { cert, key, ca }), secret_file: None, poll_interval })
}

async fn trusting(trust: &Trust, seeds: &[&str]) -> Replica {
    Replica::start_with(settings(trust.clone(), seeds), MemberId::random(), Clock::system()).await
}

#[tokio::test]
async fn whoever_the_operators_authority_has_signed_is_a_member() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    let ((files, trust), (_files, others)) = (by(&ours), by(&theirs));
    let one = trusting(&trust, &[]).await;
    let two = trusting(&trust, &[&one.address()]).await;
    one.until_linked(&two).await;
    let stranger = trusting(&others, &[&one.address()]).await;
    until_refused(&stranger, LinkFailure::Untrusted).await;
    until_refused(&one, LinkFailure::ByPeer).await;

    // And when the operator goes over to the other authority, it is the other way round.
    files.put(&theirs.server());
    files.write("ca.crt", &theirs.pem);
    one.until_linked(&stranger).await;
}

#[tokio::test]
async fn who_shows_no_certificate_is_refused() {
    let authority = Authority::new("ours");
    let (_files, trust) = by(&authority);
    let one = trusting(&trust, &[]).await;
    let (client, _shown) = stranger(b"tollgate-cluster/2");
    let socket = TcpStream::connect(one.listen).await.unwrap();
    let mut stream = client.connect(LOCALHOST.try_into().unwrap(), socket).await.unwrap();
    stream.read_to_end(&mut Vec::new()).await.unwrap_err();
    until_refused(&one, LinkFailure::NoCertificate).await;
}

/// Why nobody can be linked with these settings.
async fn why_not(settings: Settings) -> String {
    Links::bind(settings, MemberId::random(), Clock::system()).await.unwrap_err().to_string()
}

#[tokio::test]
async fn without_anything_to_trust_it_does_not_start_and_says_what_is_missing() {
    let nothing = Trust { files: None, secret_file: None, poll_interval: Duration::from_secs(1) };
    let why = why_not(settings(nothing, &[])).await;
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
        let why = why_not(settings(trust(file.clone()), &[])).await;
        assert_eq!(why, format!("cluster.secret_file: {}: {expected}", file.display()));
    }
    let why = why_not(settings(trust("/nowhere/secrets".into()), &[])).await;
    assert!(why.starts_with("cluster.secret_file: /nowhere/secrets: "), "{why}");
}

#[tokio::test]
async fn nothing_that_is_shown_for_debugging_tells_a_secret() {
    let (_folder, one) = with_secrets(SECRET, &[]).await;
    assert!(!format!("{:?}", one.links).contains("secret that"), "{:?}", one.links);
}
