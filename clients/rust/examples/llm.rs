//! An HTTP server that keeps four limits of each user of a language model: GET /chat, which streams the answer.
//!
//! A reservation holds one request, the most tokens that the answer may have, and a place in flight. Its settlement
//! frees the place, and charges the tokens that were sent.
//!
//!     cargo run --example llm -- 127.0.0.1:8081 127.0.0.1:8000

use std::{collections::HashMap, convert::Infallible, env, error::Error, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Query, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing,
};
use futures_util::stream;
use tokio::{net::TcpListener, time::sleep};
use tollgate_client::{Client, Descriptor, OnExpiry, OnNoAnswer, Options, Request, Reservation, Terms};

/// Longer than any answer takes. If this program ends before, the place is free again, and the rest stays charged.
const TERMS: Terms = Terms { ttl: Duration::from_secs(600), on_expiry: OnExpiry::Charge };
/// The index of the descriptor of calls in flight.
const IN_FLIGHT: usize = 3;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let target = arguments.next().unwrap_or_else(|| "127.0.0.1:8081".to_owned());
    let listen = arguments.next().unwrap_or_else(|| "127.0.0.1:8000".to_owned());

    // Tokens cost money.
    let client = Client::new(&target, Options { on_no_answer: OnNoAnswer::Deny, ..Options::default() })?;
    let listener = TcpListener::bind(&listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app(client, Model { pace: Duration::from_millis(50) })).await?;
    Ok(())
}

/// Stands for a language model: the tokens of an answer, one after the other.
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
        let sentence = ["Limits", " are", " kept", " exactly", ".", "\n"];
        sentence.into_iter().cycle().take(18).nth(usize::try_from(number).ok()?)
    }
}

/// The server's routes, limited by this client.
pub fn app(client: Client, model: Model) -> Router {
    Router::new().route("/chat", routing::get(chat)).with_state((client, model))
}

async fn chat(
    State((client, model)): State<(Client, Model)>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    let tokens_max = query.get("max_tokens").and_then(|text| text.parse().ok());
    let Some(tokens_max) = tokens_max.filter(|tokens_max| *tokens_max > 0) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let user = headers.get("user").map(|user| user.as_bytes().escape_ascii().to_string()).unwrap_or_default();
    let descriptor = |key| Descriptor::new([(key, user.as_str())]);
    let descriptors = [
        descriptor("requests").hits(1),
        descriptor("tokens"),
        descriptor("tokens_of_month"),
        descriptor("in_flight").hits(1).on_expiry(OnExpiry::Release),
    ];
    let Ok(reservation) = client.reserve(&Request::new("models", descriptors).hits(tokens_max), TERMS).await
    else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let mut metered = Metered { reservation, sent: Some(0) };
    let decision = metered.reservation.decision.clone();
    if !decision.allowed {
        metered.sent = None;
        return decision.refusal(&headers);
    }
    let tokens = stream::unfold((metered, 0), move |(mut metered, number)| async move {
        let token = model.token(number).await.filter(|_| number < tokens_max)?;
        metered.sent = Some(number + 1);
        Some((Ok::<_, Infallible>(token), (metered, number + 1)))
    });
    Body::from_stream(tokens).into_response()
}

/// Ends a reservation when the stream ends or its caller goes away.
struct Metered {
    reservation: Reservation,
    /// The tokens that were sent. None of a denied request, which holds hits only if the answer was lost.
    sent: Option<u64>,
}

impl Drop for Metered {
    fn drop(&mut self) {
        let (reservation, sent) = (self.reservation.clone(), self.sent);
        tokio::spawn(async move {
            let ended = match sent {
                // One request as reserved, the tokens that were sent, and no place.
                Some(sent) => reservation.settle_each(sent, [(IN_FLIGHT, 0)]).await,
                None => reservation.cancel().await,
            };
            if let Err(error) = ended {
                eprintln!("the reservation may be held until it expires: {error}");
            }
        });
    }
}
