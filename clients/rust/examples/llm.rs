//! An HTTP server that streams the words of a model: GET /generate, limited by tokens for each header `user`.
//!
//! It reserves as many tokens as an answer may have, and settles with those that were sent, also if the caller goes
//! away. Tollgate has a rule such as
//!
//!     domain: models
//!     descriptors:
//!       - key: user
//!         rate_limit: {unit: minute, requests_per_unit: 1000, algorithm: token_bucket}
//!
//!     cargo run --example llm -- 127.0.0.1:8081 127.0.0.1:8000

use std::{convert::Infallible, env, error::Error, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing,
};
use futures_util::stream;
use tokio::{net::TcpListener, time::sleep};
use tollgate_client::{Client, Descriptor, OnExpiry, OnNoAnswer, Options, Request, Reservation, Terms};

/// Tokens that an answer may have.
pub const TOKENS_MAX: u64 = 100;
const ANSWER: &str = "A rate limit says how often something may happen in a time. ";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let target = arguments.next().unwrap_or_else(|| "127.0.0.1:8081".to_owned());
    let listen = arguments.next().unwrap_or_else(|| "127.0.0.1:8000".to_owned());

    // Tokens cost money.
    let client = Client::new(&target, Options { on_no_answer: OnNoAnswer::Deny, ..Options::default() })?;
    let listener = TcpListener::bind(&listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app(client, Model { pace: Duration::from_millis(100) })).await?;
    Ok(())
}

/// Stands for a model: the words of an answer, one after the other.
#[derive(Clone, Copy)]
pub struct Model {
    /// The time between two tokens.
    pub pace: Duration,
}

impl Model {
    async fn token(self, number: u64) -> Option<&'static str> {
        if number > 0 {
            sleep(self.pace).await;
        }
        ANSWER.split_inclusive(' ').nth(usize::try_from(number).ok()?)
    }
}

/// The server's routes, limited by this client.
pub fn app(client: Client, model: Model) -> Router {
    Router::new().route("/generate", routing::get(generate)).with_state((client, model))
}

async fn generate(State((client, model)): State<(Client, Model)>, headers: HeaderMap) -> Response {
    let user =
        headers.get("user").map_or_else(Default::default, |user| String::from_utf8_lossy(user.as_bytes()));
    let request = Request::new("models", [Descriptor::new([("user", user)])]).hits(TOKENS_MAX);
    // If this program ends, the reservation is charged as a whole: more tokens were sent than none.
    let terms = Terms { ttl: Duration::from_secs(600), on_expiry: OnExpiry::Charge };
    let Ok(reservation) = client.reserve(&request, terms).await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    // From here on it is settled in any case: if the answer was lost, and the default has refused, tokens may be held.
    let metered = Metered { reservation, sent: 0 };
    let decision = &metered.reservation.decision;
    if !decision.allowed {
        return decision.refusal();
    }
    let tokens = stream::unfold(metered, move |mut metered| async move {
        let token = model.token(metered.sent).await.filter(|_| metered.sent < TOKENS_MAX)?;
        metered.sent += 1;
        Some((Ok::<_, Infallible>(token), metered))
    });
    Body::from_stream(tokens).into_response()
}

/// Settles with the tokens that were sent, when the stream ends or its caller goes away.
struct Metered {
    reservation: Reservation,
    sent: u64,
}

impl Drop for Metered {
    fn drop(&mut self) {
        let (reservation, sent) = (self.reservation.clone(), self.sent);
        tokio::spawn(async move {
            if let Err(error) = reservation.settle(sent).await {
                eprintln!("the reservation may stay charged as a whole: {error}");
            }
        });
    }
}
