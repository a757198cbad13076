//! Who may see these pages: whoever knows the token in a file.

use std::{path::PathBuf, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use siphasher::sip128::SipHasher13;
use tracing::{debug, error};

use crate::{
    api::admin::{AdminError, ClientAddress},
    files,
};

/// The longest token, in bytes.
const BYTES_MAX: usize = 4096;

/// A token in a file.
#[derive(Debug)]
pub struct Token {
    path: PathBuf,
    // Of hashes that are compared in place of tokens. Nobody knows it, so how long it takes tells nothing.
    seed: [u8; 16],
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("admin.token_file: {path}: {error}", path = path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// The file does not hold a token.
    #[error("admin.token_file: {path}: this is no token of 1 to {BYTES_MAX} visible ASCII characters on one line", path = path.display())]
    Unfit {
        /// The file.
        path: PathBuf,
    },
}

impl Token {
    /// The token in the file at `path`, whatever it is at the time.
    pub fn new(path: PathBuf) -> Self {
        Self { path, seed: rand::random() }
    }

    /// The token that is in the file now.
    pub fn read(&self) -> Result<Vec<u8>, TokenError> {
        let path = self.path.clone();
        // One more than fits, to tell what is too long, and room for the end of the line.
        let bytes = match files::read_prefix(&path, BYTES_MAX as u64 + 3) {
            Ok(bytes) => bytes,
            Err(error) => return Err(TokenError::Unreadable { path, error }),
        };
        let token = bytes.trim_ascii();
        let fits = (1..=BYTES_MAX).contains(&token.len()) && token.iter().all(u8::is_ascii_graphic);
        if fits { Ok(token.to_vec()) } else { Err(TokenError::Unfit { path }) }
    }

    fn is(&self, token: &[u8], presented: &[u8]) -> bool {
        let hash = |text: &[u8]| SipHasher13::new_with_key(&self.seed).hash(text).as_u128();
        hash(token) == hash(presented)
    }
}

/// Lets pass whoever shows the token. The file is read each time: so a new token is in force at once, and an old one
/// no longer.
pub(super) async fn require_token(State(token): State<Arc<Token>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let kept = token.clone();
    let read = tokio::task::spawn_blocking(move || kept.read()).await;
    let known = match read {
        Ok(Ok(known)) => known,
        Ok(Err(error)) => return unavailable(error.to_string()),
        Err(error) => return unavailable(error.to_string()),
    };
    if presented(&parts.headers).is_some_and(|presented| token.is(&known, presented)) {
        return next.run(Request::from_parts(parts, body)).await;
    }
    debug!(peer = %ClientAddress::of(&parts), path = parts.uri.path(), "turned away without the token");
    let wanted = [(header::WWW_AUTHENTICATE, "Bearer")];
    let why = "these pages need `Authorization: Bearer TOKEN`, with the token of admin.token_file";
    (wanted, AdminError(StatusCode::UNAUTHORIZED, why.to_owned())).into_response()
}

/// Nobody passes; where the file is, only the log tells.
fn unavailable(why: String) -> Response {
    error!(why, "nobody can be let in to the admin pages");
    let body = "admin.token_file cannot be used; the log tells why";
    AdminError(StatusCode::SERVICE_UNAVAILABLE, body.to_owned()).into_response()
}

fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token.trim_ascii())
}
