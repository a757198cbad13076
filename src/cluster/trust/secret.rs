//! A private authority, made from nothing but a secret.
//!
//! Each process with the secret derives the same authority, signs a certificate of its own with it, and trusts
//! whoever shows another. So a shared secret keeps strangers out, and TLS does the rest.

use std::time::Duration;

use aws_lc_rs::{
    encoding::{AsDer, Pkcs8V1Der},
    hkdf::{HKDF_SHA256, Salt},
    signature::Ed25519KeyPair,
};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SerialNumber, date_time_ymd,
};
use rustls::{
    RootCertStore,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};

use crate::{
    cluster::trust::Identity,
    time::{SECOND, Timestamp},
};

/// The shortest secret, in bytes.
const SECRET_BYTES_MIN: usize = 16;
/// The most secrets of a file.
const SECRETS_MAX: usize = 16;
/// What the derived keys are for, and by which of our ways: another way needs another text.
const SALT: &[u8] = b"tollgate cluster";
const PURPOSE: &[u8] = b"authority of links, Ed25519, 1";
const AUTHORITY_NAME: &str = "tollgate cluster authority";
const MEMBER_NAME: &str = "tollgate cluster member";
/// How long a member's certificate is good for, how much earlier it is dated, for clocks that are behind, and
/// when it is replaced.
const LEAF_LASTS: Duration = Duration::from_secs(24 * 3_600);
const LEAF_DATED_BACK: Duration = Duration::from_secs(3_600);
const LEAF_RENEWED_AFTER: u64 = 8 * 3_600 * SECOND;

/// The secrets of a file: the first signs, any is trusted. There is at least one.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secrets(Vec<Vec<u8>>);

impl Secrets {
    /// One a line, without the blanks around it; empty lines and those that begin with `#` are none.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let mut secrets: Vec<Vec<u8>> = Vec::new();
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let secret = line.trim_ascii();
            if secret.is_empty() || secret.starts_with(b"#") {
                continue;
            }
            if secret.len() < SECRET_BYTES_MIN {
                let line = index + 1;
                return Err(format!("line {line}: a secret has at least {SECRET_BYTES_MIN} bytes"));
            }
            secrets.push(secret.to_vec());
        }
        match secrets.len() {
            0 => Err("there is no secret in it".to_owned()),
            number if SECRETS_MAX < number => Err(format!("there are more than {SECRETS_MAX} secrets in it")),
            _ => Ok(Self(secrets)),
        }
    }

    /// A new certificate by the first, and trust in all.
    pub(super) fn identity(&self, now: Timestamp) -> Result<Identity, String> {
        let mut roots = RootCertStore::empty();
        for secret in &self.0 {
            let key = authority_key(secret)?;
            let authority = authority().self_signed(&key).map_err(|error| error.to_string())?;
            roots.add(authority.der().clone()).map_err(|error| error.to_string())?;
        }
        let first = self.0.first().ok_or("there is no secret in it")?;
        let issuer = Issuer::new(authority(), authority_key(first)?);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(|error| error.to_string())?;
        let leaf = member(now).signed_by(&key, &issuer).map_err(|error| error.to_string())?;
        Ok(Identity {
            chain: vec![leaf.der().clone()],
            key: PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            roots,
            renewed_from: now.plus(LEAF_RENEWED_AFTER),
        })
    }
}

/// The key that every process derives from this secret.
fn authority_key(secret: &[u8]) -> Result<KeyPair, String> {
    let mut seed = [0; 32];
    Salt::new(HKDF_SHA256, SALT)
        .extract(secret)
        .expand(&[PURPOSE], HKDF_SHA256)
        .and_then(|derived| derived.fill(&mut seed))
        .map_err(|_| "no key can be derived from it".to_owned())?;
    let key = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|error| error.to_string())?;
    let der: Pkcs8V1Der<'_> = key.as_der().map_err(|error| error.to_string())?;
    KeyPair::try_from(&PrivatePkcs8KeyDer::from(der.as_ref())).map_err(|error| error.to_string())
}

/// The authority's certificate, but for its key: the same in every process and, because certificates of members
/// name it, in every version.
fn authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(AUTHORITY_NAME);
    params.serial_number = Some(SerialNumber::from(1_u64));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(2200, 1, 1);
    params
}

fn member(now: Timestamp) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(MEMBER_NAME);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let now = date_time_ymd(1970, 1, 1) + Duration::from_nanos(now.as_nanos());
    params.not_before = now - LEAF_DATED_BACK;
    params.not_after = now + LEAF_LASTS;
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_makes_the_same_authority_in_every_process_and_version() {
        let key = authority_key(b"a secret that replicas share").unwrap();
        let told: String = key.public_key_raw().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(told, "d1f1e2f3ebc59349a838c486d5a5fa61071f6fd5069badd0dde14d04ca878543");
    }

    #[test]
    fn a_file_has_one_secret_a_line_without_the_blanks_around_it() {
        let text = b"\n# the first signs\n  the first of the secrets \r\n\nthe second of the secrets";
        let secrets = Secrets::parse(text).unwrap();
        assert!(secrets.0 == [b"the first of the secrets".to_vec(), b"the second of the secrets".to_vec()]);
    }
}
