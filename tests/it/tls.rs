//! TLS: server certificates, client certificates, and their reload.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tollgate::server::Server;
use tollgate_counter::time::Clock;
use tollgate_wire::proto::envoy::service::ratelimit::v3::{
    RateLimitRequest, rate_limit_service_client::RateLimitServiceClient,
};
use tonic::{
    Code,
    transport::{Certificate, ClientTlsConfig, Endpoint},
};

use crate::{
    certificates::{Authority, Files, Pair, borrowed, connect},
    frames::{ACK, GOAWAY, PREFACE, SETTINGS, read_until},
    harness::{Answer, START, Service, TIMEOUT, request_for, settings, until},
};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 1000000}
";

fn sample_request() -> RateLimitRequest {
    request_for("shop", "user", "x")
}

/// Whether a client on a new connection is answered.
async fn is_answered(service: &Service, authority: &Authority, identity: Option<&Pair>) -> bool {
    let Ok(channel) = connect(&service.addresses.grpc, authority, identity).await else { return false };
    RateLimitServiceClient::new(channel).should_rate_limit(sample_request()).await.is_ok()
}

async fn start(settings: &[(String, String)]) -> Service {
    Service::start_with(RULES, &borrowed(settings)).await
}

#[tokio::test]
async fn only_client_that_trusts_the_authority_is_answered() {
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let files = Files::new(&ours.server());
    let service = start(&files.settings("grpc")).await;
    assert!(is_answered(&service, &ours, None).await);
    assert!(!is_answered(&service, &other, None).await);
    let plain = RateLimitServiceClient::connect(format!("http://{}", service.addresses.grpc)).await;
    if let Ok(mut client) = plain {
        assert!(client.should_rate_limit(sample_request()).await.is_err(), "plaintext is refused");
    }
}

#[tokio::test]
async fn client_certificate_of_configured_authority_is_required() {
    let (ours, clients, other) = (Authority::new("ours"), Authority::new("clients"), Authority::new("other"));
    let files = Files::new(&ours.server());
    let service = start(&files.mutual("grpc", &clients)).await;
    assert!(is_answered(&service, &ours, Some(&clients.pair(&["edge"], 2100))).await);
    assert!(!is_answered(&service, &ours, None).await, "none");
    assert!(!is_answered(&service, &ours, Some(&other.pair(&["edge"], 2100))).await, "of another authority");
    assert!(
        !is_answered(&service, &ours, Some(&ours.pair(&["edge"], 2100))).await,
        "of the server's authority"
    );
    assert!(!is_answered(&service, &ours, Some(&clients.pair(&["edge"], 2020))).await, "expired");
    // A client that learns late of its refusal may have reconnected.
    until(async || {
        let figures = &service.counters.grpc;
        (figures.handshakes_failed.get() >= 4
            && figures.handshakes_failed.get() == figures.accepted.get() - 1)
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn client_certificate_needs_an_allowed_name() {
    let ours = Authority::new("ours");
    let files = Files::new(&ours.server());
    let mut settings = files.mutual("grpc", &ours);
    let names = "edge.shop, spiffe://shop/edge, 10.1.2.3";
    settings.push(("grpc.tls_client_san".to_owned(), names.to_owned()));
    let service = start(&settings).await;
    for name in ["edge.shop", "EDGE.shop", "spiffe://shop/edge", "10.1.2.3"] {
        assert!(is_answered(&service, &ours, Some(&ours.pair(&["other", name], 2100))).await, "{name}");
    }
    for name in ["shop", "x.edge.shop", "*.shop", "spiffe://shop/edge/x", "10.1.2.4"] {
        assert!(!is_answered(&service, &ours, Some(&ours.pair(&[name], 2100))).await, "{name}");
    }
}

#[tokio::test]
async fn tls_1_1_is_refused() {
    let files = Files::new(&Authority::new("ours").server());
    let service = start(&files.settings("grpc")).await;
    let mut stream = TcpStream::connect(service.addresses.grpc.to_string()).await.unwrap();
    // A TLS 1.1 ClientHello with one known cipher suite.
    let body = [&[3, 2][..], &[7; 32], &[0], &[0, 2, 0xc0, 0x13], &[1, 0]].concat();
    let hello = [&[1, 0, 0, body.len() as u8][..], &body].concat();
    let record = [&[22, 3, 1, 0, hello.len() as u8][..], &hello].concat();
    stream.write_all(&record).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!((answer[0], answer[5]), (21, 2), "a fatal alert: {answer:?}");
}

#[tokio::test]
async fn http_1_and_2_are_served_over_tls() {
    let ours = Authority::new("ours");
    let files = Files::new(&ours.server());
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yaml"), RULES).unwrap();
    let server = Server::bind(settings(&folder, &borrowed(&files.settings("http"))), Clock::manual(START));
    let server = server.await.unwrap();
    let address = server.addresses().unwrap().http;
    let (_shutdown, shutdown_signal) = tokio::sync::mpsc::channel(2);
    tokio::spawn(server.run(shutdown_signal));

    let stream = tls_stream(address, &ours, &[]).await;
    assert_eq!(Answer::to(stream, "host: x\r\n", "GET", "/livez", "").await.unwrap().code, 200);

    // The HTTP listener has no gRPC method; an UNIMPLEMENTED status proves an HTTP/2 reply.
    let channel = connect(address, &ours, None).await.unwrap();
    let error = RateLimitServiceClient::new(channel).should_rate_limit(sample_request()).await.unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented);
}

#[tokio::test]
async fn certificate_swap_under_load_fails_no_call() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let files = Files::new(&old.server());
    let service = start(&files.settings("grpc")).await;
    let both = [&old.pem, &new.pem].map(Certificate::from_pem);
    let endpoint = Endpoint::from_shared(format!("https://{}", service.addresses.grpc)).unwrap();
    let endpoint = endpoint.tls_config(ClientTlsConfig::new().ca_certificates(both)).unwrap();
    let stop: Arc<AtomicBool> = Arc::default();
    let mut load = JoinSet::new();
    for number in 0..4 {
        let (endpoint, stop) = (endpoint.clone(), stop.clone());
        load.spawn(async move {
            let mut client = RateLimitServiceClient::new(endpoint.connect().await.unwrap());
            let mut answered = 0;
            while !stop.load(SeqCst) {
                // Half of the clients reconnect for each call.
                if number % 2 == 0 {
                    client = RateLimitServiceClient::new(endpoint.connect().await.unwrap());
                }
                client.should_rate_limit(sample_request()).await.unwrap();
                answered += 1;
            }
            answered
        });
    }
    for turn in 0..6 {
        let authority = if turn % 2 == 0 { &new } else { &old };
        files.replace(&authority.server());
        until(async || is_answered(&service, authority, None).await.then_some(())).await;
    }
    assert_eq!(service.counters.grpc.certificates_loaded.get(), 7);
    stop.store(true, SeqCst);
    for answered in load.join_all().await {
        assert!(answered > 0);
    }
}

#[tokio::test]
async fn changed_client_authority_is_reloaded() {
    let (ours, clients, next) = (Authority::new("ours"), Authority::new("clients"), Authority::new("next"));
    let files = Files::new(&ours.server());
    let service = start(&files.mutual("grpc", &clients)).await;
    let (old, new) = (clients.pair(&["edge"], 2100), next.pair(&["edge"], 2100));
    assert!(!is_answered(&service, &ours, Some(&new)).await);
    files.write("ca.crt", &format!("{}{}", clients.pem, next.pem));
    until(async || is_answered(&service, &ours, Some(&new)).await.then_some(())).await;
    assert!(is_answered(&service, &ours, Some(&old)).await);
    files.write("ca.crt", &next.pem);
    until(async || (!is_answered(&service, &ours, Some(&old)).await).then_some(())).await;
    assert!(is_answered(&service, &ours, Some(&new)).await);
}

#[tokio::test]
async fn bad_certificates_at_reload_keep_old_and_are_counted_once() {
    let ours = Authority::new("ours");
    let (good, other) = (ours.server(), ours.server());
    let files = Files::new(&good);
    let service = Service::start_on_this_thread(RULES, &borrowed(&files.settings("grpc"))).await;
    let errors = || service.counters.grpc.certificate_errors.get();
    let bad = [
        ("no PEM", Pair { cert: "x".to_owned(), key: good.key.clone() }),
        ("half written", Pair { cert: good.cert[..100].to_owned(), key: good.key.clone() }),
        ("mismatched", Pair { cert: other.cert.clone(), key: good.key.clone() }),
        ("expired", ours.pair(&["localhost", "127.0.0.1"], 2020)),
    ];
    for (number, (what, pair)) in (1..).zip(bad) {
        // The mismatch between the two writes is not counted, because it does not settle.
        std::fs::write(files.path("tls.key"), &pair.key).unwrap();
        std::fs::write(files.path("tls.crt"), &pair.cert).unwrap();
        until(async || (errors() == number).then_some(())).await;
        assert!(is_answered(&service, &ours, None).await, "{what}");
    }
    std::fs::remove_file(files.path("tls.crt")).unwrap();
    until(async || (errors() == 5).then_some(())).await;
    // Further polls count no more errors, and a valid certificate is loaded again. While time is paused, it passes only
    // when no poll is under way.
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(1)).await;
    tokio::time::resume();
    assert_eq!(errors(), 5);
    files.replace(&other);
    until(async || (service.counters.grpc.certificates_loaded.get() == 2).then_some(())).await;
    assert!(is_answered(&service, &ours, None).await);
}

#[tokio::test]
async fn certificate_not_valid_yet_is_loaded_when_valid() {
    let ours = Authority::new("ours");
    let files = Files::new(&ours.server());
    let service = start(&files.settings("grpc")).await;
    let figures = || &service.counters.grpc;
    let day = Duration::from_secs(24 * 60 * 60);
    // The clock moves to 1999, before any certificate is valid.
    service.clock.set(tollgate_counter::time::Timestamp::from_nanos(29 * 365 * day.as_nanos() as u64));
    files.replace(&ours.server());
    until(async || (figures().certificate_errors.get() == 1).then_some(())).await;
    service.clock.set(START);
    until(async || (figures().certificates_loaded.get() == 2).then_some(())).await;
}

#[tokio::test]
async fn bad_certificates_refuse_start_and_name_the_setting() {
    let ours = Authority::new("ours");
    let (good, other) = (ours.server(), ours.server());
    let expired = ours.pair(&["localhost"], 2020);
    let cases = [
        (Pair { cert: "x".to_owned(), ..good.clone() }, "grpc.tls_cert: ", "the file has no certificate"),
        (
            Pair { key: "x".to_owned(), ..good.clone() },
            "grpc.tls_key: ",
            "the file has no readable private key",
        ),
        (Pair { key: other.key, ..good.clone() }, "grpc.tls_key: ", "the key does not match the certificate"),
        (expired, "grpc.tls_cert: ", "the certificate expired at 2020-01-01T00:00:00Z"),
    ];
    let rules = tempfile::tempdir().unwrap();
    for (pair, setting, why) in cases {
        let files = Files::new(&pair);
        let settings = settings(&rules, &borrowed(&files.settings("grpc")));
        let error = Server::bind(settings, Clock::manual(START)).await.unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(setting) && text.contains(why), "{text}");
    }
    let files = Files::new(&good);
    for (text, why) in [("", "the file has no certificate"), (expired_authority(), "expired at")] {
        let mut lines = files.mutual("grpc", &ours);
        files.write("ca.crt", text);
        lines.push(("grpc.tls_client_san".to_owned(), "edge".to_owned()));
        let error =
            Server::bind(settings(&rules, &borrowed(&lines)), Clock::manual(START)).await.unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with("grpc.tls_client_ca: ") && error.contains(why), "{error}");
    }
    std::fs::remove_file(files.path("tls.key")).unwrap();
    let error =
        Server::bind(settings(&rules, &borrowed(&files.settings("grpc"))), Clock::manual(START)).await;
    assert!(error.unwrap_err().to_string().contains("tls.key: No such file"));
}

/// An expired certificate of an authority.
fn expired_authority() -> &'static str {
    static PEM: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    PEM.get_or_init(|| Authority::new("x").pair(&["authority"], 2020).cert)
}

#[tokio::test]
async fn stats_show_expiry_of_active_certificate() {
    let files = Files::new(&Authority::new("ours").server());
    let service = start(&files.settings("grpc")).await;
    let ends = service.counters.grpc.certificate_expires().unwrap();
    // The first second of 2100.
    assert_eq!(ends.as_nanos(), 4_102_444_800 * 1_000_000_000);
    assert_eq!(service.counters.http.certificate_expires(), None);
}

/// A connection over TLS that offers these protocols.
async fn tls_stream(address: SocketAddr, authority: &Authority, protocols: &[&str]) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::from(address.ip());
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

#[tokio::test]
async fn idle_http2_client_without_ping_ack_delays_no_shutdown() {
    let ours = Authority::new("ours");
    let files = Files::new(&ours.server());
    let mut settings = files.settings("http");
    // Longer than the test waits.
    settings.push(("drain.timeout".to_owned(), "300s".to_owned()));
    let service = Service::start_modified(RULES, &borrowed(&settings), |_| ()).await;
    let mut idle = tls_stream(service.addresses.http, &ours, &["h2"]).await;
    idle.write_all(PREFACE).await.unwrap();
    // A connection from which nothing was received is closed without a frame.
    read_until(&mut idle, |frame| frame.kind == SETTINGS && frame.flags == ACK).await.unwrap();
    // The client acknowledges nothing from here on, also not the PING of the shutdown.
    service.terminate().await;
    assert!(timeout(TIMEOUT, read_until(&mut idle, |frame| frame.kind == GOAWAY)).await.unwrap().is_some());
    assert!(timeout(TIMEOUT, service.task).await.unwrap().unwrap().is_ok());
}
