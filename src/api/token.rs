//! Access control of the admin pages by a bearer token in a file.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use siphasher::sip128::SipHasher13;
use tollgate_counter::lock::lock;
use tollgate_net::private_file;
use tracing::{debug, error};

use crate::api::{
    error::AccessError,
    format::{AdminError, ClientAddress},
};

/// Guesses of a token of this length do not succeed, however many there are: 24 characters of base64 have 144 bits.
const LONG_BYTES: usize = 24;

/// A token in a file.
#[derive(Debug)]
pub struct Token {
    path: PathBuf,
    // The secret seed of the hashes that are compared instead of the tokens, so that the time of the comparison
    // reveals nothing.
    seed: [u8; 16],
    // The hash of the token that was read last, if it is long.
    last_long: Mutex<Option<u128>>,
}

/// The token file cannot be read, or does not hold a token.
#[derive(Debug, thiserror::Error)]
#[error("admin.token_file: {path}: {error}", path = path.display())]
pub struct TokenError {
    path: PathBuf,
    error: std::io::Error,
}

impl Token {
    /// The token in the file at `path`, which is read at each use.
    pub fn new(path: PathBuf) -> Self {
        Self { path, seed: rand::random(), last_long: Mutex::default() }
    }

    /// Reads the current token.
    pub fn read(&self) -> Result<Vec<u8>, TokenError> {
        private_file::read_token(&self.path).map_err(|error| TokenError { path: self.path.clone(), error })
    }

    fn hash(&self, text: &[u8]) -> u128 {
        SipHasher13::new_with_key(&self.seed).hash(text).as_u128()
    }

    /// Whether `headers` show a token, right or wrong.
    pub(in crate::api) fn is_presented(headers: &HeaderMap) -> bool {
        presented(headers).is_some()
    }

    /// Whether `headers` show the token that was read last, if it is too long to be guessed. The file may have another
    /// one by now.
    pub(in crate::api) fn is_last_long(&self, headers: &HeaderMap) -> bool {
        let last = *lock(&self.last_long);
        last.is_some() && presented(headers).map(|presented| self.hash(presented)) == last
    }

    /// Whether `headers` show the token. The file is read each time, so a new token takes effect at once and an old one
    /// is invalid at once.
    pub async fn check(self: &Arc<Self>, headers: &HeaderMap) -> Result<(), AccessError> {
        let token = self.clone();
        let read = tokio::task::spawn_blocking(move || token.read()).await;
        let known = read.map_err(|error| unusable(&error))?.map_err(|error| unusable(&error))?;
        let hash = self.hash(&known);
        let long = (known.len() >= LONG_BYTES).then_some(hash);
        *lock(&self.last_long) = long;
        let is_valid = presented(headers).is_some_and(|presented| self.hash(presented) == hash);
        if is_valid { Ok(()) } else { Err(AccessError::Refused) }
    }
}

fn unusable(error: &dyn std::fmt::Display) -> AccessError {
    error!(why = %error, "cannot read the admin token; refused a request");
    AccessError::Unusable
}

/// Middleware that requires the token.
pub(super) async fn require_token(State(token): State<Arc<Token>>, request: Request, next: Next) -> Response {
    match token.check(request.headers()).await {
        Ok(()) => next.run(request).await,
        Err(error @ (AccessError::Refused | AccessError::NoToken)) => {
            let (parts, _) = request.into_parts();
            debug!(peer = %ClientAddress::from_parts(&parts), path = parts.uri.path(), "refused a request without the token");
            let wanted = [(header::WWW_AUTHENTICATE, "Bearer")];
            (wanted, AdminError(StatusCode::UNAUTHORIZED, error.to_string())).into_response()
        }
        Err(error @ (AccessError::Unusable | AccessError::Busy)) => {
            AdminError::unavailable(error).into_response()
        }
    }
}

fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token.trim_ascii())
}
