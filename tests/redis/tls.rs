//! Connections to servers with TLS.

use std::{fs, path::Path};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use tempfile::TempDir;
use tollgate_counter::algorithm::Operation;
use tollgate_shared_store::{SharedStoreSettings, SharedStoreState, StoreTlsFiles};

use crate::{
    replica::{Replica, a_day, check, key, settings, until},
    server::Server,
};

/// Writes an authority and a certificate that it has issued: `ca.pem`, `cert.pem` and `key.pem`.
fn write_certificates(folder: &Path) {
    let mut authority = CertificateParams::default();
    authority.distinguished_name.push(DnType::CommonName, "authority");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
    let mut leaf = CertificateParams::new(["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate().unwrap();
    let certificate = leaf.signed_by(&key, &authority).unwrap();
    fs::write(folder.join("ca.pem"), authority.pem()).unwrap();
    fs::write(folder.join("cert.pem"), certificate.pem()).unwrap();
    fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
}

/// A server with TLS that requires a certificate, its address, and the folder of the certificates.
pub fn start_with_tls() -> (Server, String, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    write_certificates(folder.path());
    let text = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (server, port) = Server::start_tls(&[
        "--tls-cert-file",
        &text("cert.pem"),
        "--tls-key-file",
        &text("key.pem"),
        "--tls-ca-cert-file",
        &text("ca.pem"),
        "--tls-auth-clients",
        "yes",
    ]);
    (server, format!("rediss://localhost:{port}"), folder)
}

#[tokio::test]
async fn server_with_tls_needs_authority_and_client_certificate() {
    let (server, url, folder) = start_with_tls();
    let file = |name: &str| folder.path().join(name);
    let client = Some((file("cert.pem"), file("key.pem")));
    let tls = StoreTlsFiles { ca: Some(file("ca.pem")), client };
    let replica = Replica::ready(SharedStoreSettings { tls, ..settings(std::slice::from_ref(&url)) }).await;
    let decided = replica.decide(&[check(key("a"), &a_day(10), Operation::Charge(1))]).await;
    assert_eq!((decided.decisions[0].remaining, decided.degraded[0]), (9, false));
    assert_eq!(server.run::<u64>("DBSIZE"), 3, "a counter, the secret and the replicas");

    let closed = |replica: &Replica| match replica.store.state() {
        SharedStoreState::Ready => panic!("the connection must fail"),
        SharedStoreState::Unavailable(reason) => reason != "connecting",
    };
    let without_certificate = StoreTlsFiles { ca: Some(file("ca.pem")), client: None };
    let refused = Replica::start(SharedStoreSettings {
        tls: without_certificate,
        ..settings(std::slice::from_ref(&url))
    });
    until("the server refuses", async || closed(&refused)).await;
    let without_authority = Replica::start(settings(&[url]));
    until("the server's certificate is refused", async || closed(&without_authority)).await;
}
