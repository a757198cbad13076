//! Rules from a control plane: a client of the aggregated discovery service, which gets all resources each time.
//!
//! A lost control plane changes nothing but a metric and a log line: the active rules stay until it answers again.

use std::{
    convert::Infallible,
    error::Error,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use futures_util::stream::poll_fn;
use tokio::{
    sync::{mpsc, oneshot},
    time::{sleep, timeout},
};
use tollgate_counter::resilience::Backoff;
use tollgate_rules::{OverlayReceiver, RuleLoader};
use tollgate_telemetry::causes;
use tonic::transport::Channel;
use tracing::{debug, info, warn};

use crate::ClientTlsFiles;

mod applier;
mod endpoint;
#[cfg(any(test, fuzzing, feature = "testing"))]
pub mod fuzz;
mod proto;
mod resource;
mod session;

pub use endpoint::{is_header, is_url};
pub use session::XdsStats;

use applier::Update;
use proto::envoy::service::discovery::v3::{
    DiscoveryRequest, DiscoveryResponse,
    aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
};
use session::XdsSession;

/// Time for the connection to stand, TLS included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A control plane sends rules again as soon as they are refused. From the second time on, the answer to the same rules
/// waits this long.
const REPEATED_REFUSAL_DELAY: Duration = Duration::from_secs(1);
/// Requests that wait to be sent: each follows a response.
const REQUESTS_MAX: usize = 2;

/// The control plane and how it is reached.
#[derive(Clone, Debug)]
pub struct XdsSettings {
    /// `http://HOST:PORT`, or `https://HOST:PORT` for TLS.
    pub url: String,
    /// The name of this client, by which the control plane chooses the rules.
    pub node_id: String,
    /// Names and values in the metadata of this node, by which the control plane can choose.
    pub node_metadata: Vec<(String, String)>,
    /// Headers of the stream.
    pub headers: Vec<(String, String)>,
    /// The certificates, for `https`.
    pub tls: ClientTlsFiles,
    /// The maximum size of a response, in bytes.
    pub message_bytes_max: usize,
    /// The first and the largest delay before the control plane is called again.
    pub retry_min: Duration,
    /// See `retry_min`.
    pub retry_max: Duration,
}

/// Follows the rules of a control plane.
#[derive(Debug)]
struct XdsClient {
    settings: XdsSettings,
    updates: mpsc::Sender<Update>,
    stats: Arc<XdsStats>,
    session: XdsSession,
}

/// Why a stream of responses has ended that the control plane ended without an error.
const CLOSED: &str = "the control plane closed the stream";

/// Follows the rules of a control plane and the overlay, for as long as it is polled.
pub(super) async fn follow(
    settings: XdsSettings,
    loader: RuleLoader,
    overlays: Option<OverlayReceiver>,
    stats: Arc<XdsStats>,
) {
    let (updates, receiver) = mpsc::channel(1);
    let session = XdsSession::new(&settings.node_id, &settings.node_metadata);
    let client = XdsClient { settings, updates, stats, session };
    tokio::join!(client.run(), applier::apply(loader, receiver, overlays));
}

impl XdsClient {
    /// Connects and follows the rules, for as long as it is polled.
    async fn run(mut self) {
        let mut backoff = Backoff::new(self.settings.retry_min, self.settings.retry_max);
        // One line for each outage, or for each new cause.
        let mut logged = None;
        loop {
            let answers_before = self.session.answers;
            let Err(error) = self.follow().await;
            self.stats.is_connected.store(false, Relaxed);
            let url = &self.settings.url;
            if self.session.answers > answers_before {
                backoff.reset();
                logged = None;
            }
            if logged.as_ref() == Some(&error) {
                debug!(url, error, "the control plane cannot be reached");
            } else {
                warn!(url, error, "the control plane cannot be reached; the active rules stay");
                logged = Some(error);
            }
            sleep(backoff.next_delay(rand::random())).await;
        }
    }

    /// Follows the rules over one connection. The error says why it has ended.
    async fn follow(&mut self) -> Result<Infallible, String> {
        let channel = self.connect().await?;
        self.stats.is_connected.store(true, Relaxed);
        self.stats.connections.increase();
        info!(url = self.settings.url, "connected to the control plane");
        let (requests, mut receiver) = mpsc::channel(REQUESTS_MAX);
        let first = self.session.subscribe();
        // The receiver is alive, and the channel is empty.
        let _ = requests.send(first).await;
        let mut client = AggregatedDiscoveryServiceClient::new(channel)
            .max_decoding_message_size(self.settings.message_bytes_max);
        let mut request = tonic::Request::new(poll_fn(move |cx| receiver.poll_recv(cx)));
        endpoint::add_headers(request.metadata_mut(), &self.settings.headers);
        // A control plane without rules for this node answers nothing, so there is no timeout.
        let responses = client.stream_aggregated_resources(request).await.map_err(end)?;
        let mut responses = responses.into_inner();
        loop {
            let response = responses.message().await.map_err(end)?.ok_or(CLOSED)?;
            let answer = self.take(response).await;
            if requests.send(answer).await.is_err() {
                return Err(CLOSED.to_owned());
            }
        }
    }

    async fn connect(&self) -> Result<Channel, String> {
        // Files are read for each connection, so that renewed certificates count.
        let endpoint = endpoint::endpoint(&self.settings.url, &self.settings.tls).await?;
        match timeout(CONNECT_TIMEOUT, endpoint.connect()).await {
            Ok(connected) => connected.map_err(|error| causes(&error)),
            Err(_elapsed) => Err(format!("no connection within {CONNECT_TIMEOUT:?}")),
        }
    }

    /// Loads the rules of a response and returns the answer to it.
    async fn take(&mut self, mut response: DiscoveryResponse) -> DiscoveryRequest {
        let contents = session::contents(&mut response);
        let fingerprint = contents.fingerprint();
        let outcome = match self.session.refused(fingerprint) {
            Some(problems) => {
                sleep(REPEATED_REFUSAL_DELAY).await;
                Err(problems)
            }
            None => {
                let (done, outcome) = oneshot::channel();
                let version = response.version_info.clone();
                let update = Update { contents: Arc::new(contents), version, done };
                // Fails only at the end of the process, and then there is no outcome.
                let _ = self.updates.send(update).await;
                outcome.await.unwrap_or_else(|_| Err(session::not_compiled()))
            }
        };
        let counter = if outcome.is_ok() { &self.stats.accepted } else { &self.stats.refused };
        counter.increase();
        self.session.answer(&response, fingerprint, outcome)
    }
}

/// Why a stream has ended that the control plane ended, or whose connection is lost.
fn end(status: tonic::Status) -> String {
    // An error of the transport, such as that of a control plane that stops.
    if status.source().is_some() {
        return "the connection was lost".to_owned();
    }
    format!("{} ({:?})", status.message(), status.code())
}
