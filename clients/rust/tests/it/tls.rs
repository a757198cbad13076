//! A server with TLS.

use std::fs;

use rcgen::{CertifiedKey, generate_simple_self_signed};
use tempfile::TempDir;
use tollgate_client::{Certificate, ClientTlsConfig, OnNoAnswer, Options, Source};

use crate::harness::{RULES, Server, answers, client, options, request};

fn certificate() -> CertifiedKey<rcgen::KeyPair> {
    generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap()
}

fn trusting(pem: &str) -> Options {
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
    Options { tls: Some(tls), on_no_answer: OnNoAnswer::Deny, ..options() }
}

#[tokio::test]
async fn client_trusts_the_given_authority_only() {
    let (ours, folder) = (certificate(), TempDir::new().unwrap());
    let [cert, key] =
        ["cert.pem", "key.pem"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    fs::write(&cert, ours.cert.pem()).unwrap();
    fs::write(&key, ours.signing_key.serialize_pem()).unwrap();
    let server = Server::start_with(RULES, &["--grpc-tls-cert", &cert, "--grpc-tls-key", &key]).await;

    assert!(answers(&client(server.target(), trusting(&ours.cert.pem()))).await);
    let plaintext = Options { on_no_answer: OnNoAnswer::Deny, ..options() };
    for options in [trusting(&certificate().cert.pem()), plaintext] {
        let decision = client(server.target(), options).check(&request("user", "ann")).await.unwrap();
        assert!(!decision.allowed && decision.source == Source::Default, "{decision:?}");
    }
}
