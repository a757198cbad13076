//! A private certificate authority derived from a shared secret.
//!
//! Each process with the secret derives the same authority, signs its own certificate with it, and trusts every
//! certificate that the authority has signed. Other processes cannot join; TLS provides the rest.
//!
//! A handshake shows a certificate to any client, against which secrets can be tried offline. So the derivation is slow
//! (argon2id), and a secret with little entropy is refused.

use std::{error::Error, sync::Mutex, time::Duration};

use argon2::{Algorithm, Argon2, Params, Version};
use aws_lc_rs::{
    encoding::{AsDer, Pkcs8V1Der},
    signature::Ed25519KeyPair,
};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SerialNumber, date_time_ymd,
};
use rustls::{
    RootCertStore,
    crypto::aws_lc_rs::default_provider,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    sign::CertifiedKey,
};
use tollgate_counter::{
    lock::lock,
    time::{Clock, SECOND, Timestamp},
};

use crate::trust::identity::TlsConfigs;

/// The shortest secret in bytes, and the fewest distinct bytes in one.
const SECRET_BYTES_MIN: usize = 16;
const SECRET_DISTINCT_MIN: usize = 8;
/// The most secrets in a file.
const SECRETS_MAX: usize = 16;
/// The salt and the cost of the derivation. They belong to the protocol version: replicas with other values derive
/// another authority. The salt is constant because replicas share nothing but the secret.
const SALT: &[u8] = b"tollgate cluster: authority of links, Ed25519, 2";
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
const LANES: u32 = 1;
/// Held during a derivation, so that at most one derivation uses memory at a time.
static DERIVING: Mutex<()> = Mutex::new(());
const AUTHORITY_NAME: &str = "tollgate cluster authority";
const MEMBER_NAME: &str = "tollgate cluster member";
/// The lifetime of a member's certificate, the time by which it is backdated for clocks that are behind, and the age
/// at which it is renewed.
const LEAF_LIFETIME: Duration = Duration::from_secs(24 * 3_600);
const LEAF_BACKDATE: Duration = Duration::from_secs(3_600);
const LEAF_RENEWAL_AGE: u64 = 8 * 3_600 * SECOND;

/// The secrets of a file: the first one signs, each one is trusted. Invariant: at least one.
#[derive(Hash)]
pub(super) struct Secrets(Vec<Vec<u8>>);

/// The keys derived from [`Secrets`], in PKCS #8 and in the same order. Invariant: at least one.
pub(super) struct Authorities(Vec<PrivatePkcs8KeyDer<'static>>);

impl Secrets {
    /// Parses one secret per line, trimmed; skips empty lines and lines that begin with `#`.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let mut secrets: Vec<Vec<u8>> = Vec::new();
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let secret = line.trim_ascii();
            if secret.is_empty() || secret.starts_with(b"#") {
                continue;
            }
            if secret.len() < SECRET_BYTES_MIN || distinct_bytes(secret) < SECRET_DISTINCT_MIN {
                let line = index + 1;
                return Err(format!(
                    "line {line}: a secret needs at least {SECRET_BYTES_MIN} bytes and {SECRET_DISTINCT_MIN} distinct ones; \
                     create one with `openssl rand -base64 32`"
                ));
            }
            secrets.push(secret.to_vec());
        }
        match secrets.len() {
            0 => Err("the file contains no secret".to_owned()),
            number if number > SECRETS_MAX => {
                Err(format!("the file contains more than {SECRETS_MAX} secrets"))
            }
            _ => Ok(Self(secrets)),
        }
    }

    /// Derives the authority of each secret. Takes long and much memory: not for threads that answer requests.
    pub(super) fn derive(&self) -> Result<Authorities, Box<dyn Error>> {
        self.0.iter().map(|secret| authority_key(secret)).collect::<Result<_, _>>().map(Authorities)
    }
}

impl Authorities {
    /// Issues a certificate signed by the first authority, with trust in all of them.
    pub(super) fn configs(&self, clock: &Clock) -> Result<TlsConfigs, Box<dyn Error>> {
        let now = clock.wall();
        let mut roots = RootCertStore::empty();
        for key in &self.0 {
            let authority = authority_params().self_signed(&KeyPair::try_from(key)?)?;
            roots.add(authority.der().clone())?;
        }
        let first = self.0.first().ok_or("the file contains no secret")?;
        let issuer = Issuer::new(authority_params(), KeyPair::try_from(first)?);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let leaf = member_params(now).signed_by(&key, &issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let pair = CertifiedKey::from_der(vec![leaf.der().clone()], key, &default_provider())?;
        Ok(TlsConfigs::new(pair, roots, now.plus(LEAF_RENEWAL_AGE), clock)?)
    }
}

/// The number of distinct bytes.
fn distinct_bytes(secret: &[u8]) -> usize {
    let mut bytes = secret.to_vec();
    bytes.sort_unstable();
    bytes.dedup();
    bytes.len()
}

/// The key that every process derives from this secret, in PKCS #8.
fn authority_key(secret: &[u8]) -> Result<PrivatePkcs8KeyDer<'static>, Box<dyn Error>> {
    let params = Params::new(MEMORY_KIB, PASSES, LANES, None)?;
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    let mut seed = [0; 32];
    {
        // The lock guards no data, so a poisoned lock is harmless.
        let _one_at_a_time = lock(&DERIVING);
        argon2.hash_password_into(secret, SALT, &mut seed)?;
    }
    let key = Ed25519KeyPair::from_seed_unchecked(&seed)?;
    let der: Pkcs8V1Der<'_> = key.as_der()?;
    Ok(PrivatePkcs8KeyDer::from(der.as_ref().to_vec()))
}

/// The authority's certificate without its key. Equal in every process and version, because certificates of members
/// name it.
fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(AUTHORITY_NAME);
    params.serial_number = Some(SerialNumber::from(1_u64));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.not_before = date_time_ymd(2000, 1, 1);
    params.not_after = date_time_ymd(2200, 1, 1);
    params
}

fn member_params(now: Timestamp) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = common_name(MEMBER_NAME);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let now = date_time_ymd(1970, 1, 1) + Duration::from_nanos(now.as_nanos());
    params.not_before = now - LEAF_BACKDATE;
    params.not_after = now + LEAF_LIFETIME;
    params
}

fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_derives_same_authority_in_every_process_and_version() {
        let key = KeyPair::try_from(&authority_key(b"a secret that replicas share").unwrap()).unwrap();
        let public_key: String = key.public_key_raw().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(public_key, "2cb7279bcbb7e38829ad5f968ff0fc219fc35ef599f5a8f6b837b4e1b910ccca");
    }

    #[test]
    fn secret_file_has_one_trimmed_secret_per_line() {
        let text = b"\n# the first signs\n  the first of the secrets \r\n\nthe second of the secrets";
        let secrets = Secrets::parse(text).unwrap();
        assert!(secrets.0 == [b"the first of the secrets".to_vec(), b"the second of the secrets".to_vec()]);
    }

    #[test]
    fn guessable_secret_is_refused_with_advice() {
        for bad in ["aaaaaaaaaaaaaaaa", "abcdefgabcdefgabcdefg", "123456789abcdef"] {
            let error =
                Secrets::parse(format!("the first of the secrets\n{bad}\n").as_bytes()).err().unwrap();
            assert!(error.starts_with("line 2: ") && error.contains("openssl rand -base64 32"), "{error}");
        }
        assert!(Secrets::parse(b"abcdefghabcdefgh").is_ok());
    }
}
