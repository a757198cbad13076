//! Connections to all addresses of the server's names, which take calls in turn.

use std::{
    collections::{BTreeMap, btree_map},
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    net::lookup_host,
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep_until, timeout_at},
};
use tonic::{
    Request, Response, Status,
    transport::{self, Channel, ClientTlsConfig, Endpoint},
};

use crate::{
    InvalidOptions,
    cause::{Cause, chain},
    endpoint::{authority, connect, endpoint},
    v1::rate_limiter_client::RateLimiterClient,
};

/// Answers are larger than their requests.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// Further addresses of a name take no calls.
const ADDRESSES_MAX: usize = 256;
/// Connections that one call tries, one after the other.
const TRIES_MAX: usize = 3;
/// The time between the first two attempts to connect to one address.
const RETRY_FIRST: Duration = Duration::from_millis(100);
/// The longest time between two attempts to connect to one address.
const RETRY_MAX: Duration = Duration::from_secs(1);
/// The time between lookups of the names.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(30);
/// The time between lookups while a connection is missing.
const LOOKUP_RETRY: Duration = Duration::from_secs(1);

/// A client of `tollgate.v1` over one connection.
pub(crate) type Server = RateLimiterClient<Channel>;

/// Calls the servers behind a target.
pub(crate) struct Connections {
    state: Arc<watch::Sender<State>>,
    broken: mpsc::Sender<SocketAddr>,
    turn: AtomicUsize,
    _manager: JoinSet<()>,
}

#[derive(Default)]
struct State {
    ready: Vec<Connection>,
    /// Why there is no connection. None while the first attempt is under way: calls wait for it.
    failure: Option<Status>,
    closed: bool,
}

/// One HTTP/2 connection. It never reconnects: the manager makes another one.
#[derive(Clone)]
struct Connection {
    number: u64,
    address: SocketAddr,
    server: Server,
}

impl Connections {
    /// Connects in the background to all addresses of the target: `host:port`, or several of them with commas between.
    pub(crate) fn new(target: &str, tls: Option<&ClientTlsConfig>) -> Result<Self, InvalidOptions> {
        let endpoints = target.split(',').map(|name| endpoint(name.trim(), tls)).collect::<Result<_, _>>()?;
        let state = Arc::new(watch::Sender::default());
        // Each connection is reported once, by the call that removes it.
        let (broken, reports) = mpsc::channel(ADDRESSES_MAX);
        let mut manager = JoinSet::new();
        manager.spawn(Manager::new(endpoints, state.clone()).run(reports));
        Ok(Self { state, broken, turn: AtomicUsize::new(0), _manager: manager })
    }

    /// Makes one call. A connection that was closed before it has taken the call is replaced by another one. A call that
    /// has charged nothing is repeated once, if another address is connected.
    pub(crate) async fn call<M, T, F>(
        &self,
        message: M,
        deadline: Instant,
        method: impl Fn(Server, Request<M>) -> F,
    ) -> Result<T, Status>
    where
        M: Clone,
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut changes = self.state.subscribe();
        let calls = async {
            let (mut tries, mut refusal) = (0, None);
            loop {
                let connection = match &refusal {
                    None => self.next().await?,
                    Some((address, status)) => self.other(*address).ok_or_else(|| Status::clone(status))?,
                };
                let mut request = Request::new(message.clone());
                request.set_timeout(deadline.saturating_duration_since(Instant::now()));
                let status = match method(connection.server.clone(), request).await {
                    Ok(response) => return Ok(response.into_inner()),
                    Err(status) => status,
                };
                tries += 1;
                match Cause::from_status(&status) {
                    Cause::NotReady if refusal.is_none() => refusal = Some((connection.address, status)),
                    Cause::NotReady | Cause::Server => return Err(status),
                    Cause::Timeout => return Err(late()),
                    Cause::NotSent if tries < TRIES_MAX => self.remove(&connection),
                    Cause::NotSent | Cause::Connection => {
                        self.remove(&connection);
                        return Err(Status::unavailable(chain(&status)));
                    }
                }
            }
        };
        let end = async {
            tokio::select! {
                biased;
                result = calls => result,
                _ = changes.wait_for(|state| state.closed) => Err(closed()),
            }
        };
        timeout_at(deadline, end).await.unwrap_or_else(|_| Err(late()))
    }

    /// Closes the connections. Calls under way end, and later ones are not sent.
    pub(crate) fn close(&self) {
        self.state.send_modify(|state| state.closed = true);
    }

    /// The connection whose turn it is. Waits while the first one is being made.
    async fn next(&self) -> Result<Connection, Status> {
        if let Some(next) = self.try_next(&self.state.borrow()) {
            return next;
        }
        let mut changes = self.state.subscribe();
        loop {
            if let Some(next) = self.try_next(&changes.borrow_and_update()) {
                return next;
            }
            changes.changed().await.map_err(|_| closed())?;
        }
    }

    /// A connection to another address whose turn it is, if there is one.
    fn other(&self, than: SocketAddr) -> Option<Connection> {
        let state = self.state.borrow();
        let mut others = state.ready.iter().filter(|ready| ready.address != than);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % others.clone().count().max(1);
        others.nth(turn).cloned()
    }

    fn try_next(&self, state: &State) -> Option<Result<Connection, Status>> {
        if state.closed {
            return Some(Err(closed()));
        }
        if state.ready.is_empty() {
            return state.failure.clone().map(Err);
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        Some(Ok(state.ready[turn % state.ready.len()].clone()))
    }

    fn remove(&self, connection: &Connection) {
        let removed = self.state.send_if_modified(|state| {
            let before = state.ready.len();
            state.ready.retain(|ready| ready.number != connection.number);
            state.ready.len() < before
        });
        if removed {
            // Full only if the manager has ended, with this client.
            let _ = self.broken.try_send(connection.address);
        }
    }
}

/// The status of a call without an answer in time.
pub(crate) fn late() -> Status {
    Status::deadline_exceeded("no answer in time")
}

fn closed() -> Status {
    Status::cancelled("the client is closed")
}

/// The status of a call whose runtime has ended.
pub(crate) fn runtime_ended() -> Status {
    Status::unavailable("the runtime of the client has ended")
}

/// Keeps a connection to each address.
struct Manager {
    endpoints: Vec<Endpoint>,
    state: Arc<watch::Sender<State>>,
    addresses: BTreeMap<SocketAddr, Address>,
    /// Lookups and attempts to connect. Invariant: at most one lookup, and one attempt that is not out of date for
    /// each address.
    tasks: JoinSet<Event>,
    attempts: u64,
    lookup_at: Instant,
    lookup_runs: bool,
}

/// What is known of an address.
struct Address {
    /// The index of the endpoint whose name has it.
    endpoint: usize,
    /// The number of the last attempt to connect, which is that of its connection.
    attempt: u64,
    /// Since the last connection.
    failures: u32,
    connected_at: Option<Instant>,
}

enum Event {
    Found(Vec<io::Result<Vec<SocketAddr>>>),
    Connected { address: SocketAddr, attempt: u64, result: Result<Channel, transport::Error> },
}

impl Manager {
    fn new(endpoints: Vec<Endpoint>, state: Arc<watch::Sender<State>>) -> Self {
        let (addresses, tasks, lookup_at) = (BTreeMap::new(), JoinSet::new(), Instant::now());
        Self { endpoints, state, addresses, tasks, attempts: 0, lookup_at, lookup_runs: false }
    }

    async fn run(mut self, mut reports: mpsc::Receiver<SocketAddr>) {
        let mut changes = self.state.subscribe();
        loop {
            tokio::select! {
                _ = changes.wait_for(|state| state.closed) => break,
                () = sleep_until(self.lookup_at), if !self.lookup_runs => self.look_up(),
                Some(Ok(event)) = self.tasks.join_next() => match event {
                    Event::Found(found) => self.found(found),
                    Event::Connected { address, attempt, result } => self.connected(address, attempt, result),
                },
                report = reports.recv() => match report {
                    Some(address) => self.broken(address),
                    None => break,
                },
            }
        }
        self.state.send_modify(|state| state.ready.clear());
    }

    fn look_up(&mut self) {
        self.lookup_runs = true;
        let names: Vec<_> = self.endpoints.iter().map(|endpoint| authority(endpoint).to_owned()).collect();
        self.tasks.spawn(async move {
            let mut found = Vec::with_capacity(names.len());
            for name in names {
                found.push(lookup_host(name).await.map(Iterator::collect));
            }
            Event::Found(found)
        });
    }

    fn found(&mut self, found: Vec<io::Result<Vec<SocketAddr>>>) {
        let mut failure = None;
        for (endpoint, found) in found.into_iter().enumerate() {
            match found {
                // The addresses that are known of this name stay.
                Err(error) => failure = Some(format!("{}: {error}", authority(&self.endpoints[endpoint]))),
                Ok(found) => self.use_addresses(endpoint, &found),
            }
        }
        let missing = self.addresses.len() > self.state.borrow().ready.len() || self.addresses.is_empty();
        self.lookup_at = Instant::now() + if missing { LOOKUP_RETRY } else { LOOKUP_INTERVAL };
        self.lookup_runs = false;
        if self.addresses.is_empty() {
            self.fail(failure.unwrap_or_else(|| "the name of the server has no addresses".to_owned()));
        }
    }

    fn use_addresses(&mut self, endpoint: usize, found: &[SocketAddr]) {
        self.addresses.retain(|address, known| known.endpoint != endpoint || found.contains(address));
        for &address in found {
            if self.addresses.len() < ADDRESSES_MAX
                && let btree_map::Entry::Vacant(vacant) = self.addresses.entry(address)
            {
                vacant.insert(Address { endpoint, attempt: 0, failures: 0, connected_at: None });
                self.connect(address, Duration::ZERO);
            }
        }
        self.state.send_if_modified(|state| {
            let before = state.ready.len();
            state.ready.retain(|ready| self.addresses.contains_key(&ready.address));
            state.ready.len() < before
        });
    }

    fn connect(&mut self, address: SocketAddr, delay: Duration) {
        let Some(known) = self.addresses.get_mut(&address) else { return };
        self.attempts += 1;
        known.attempt = self.attempts;
        let (endpoint, attempt) = (self.endpoints[known.endpoint].clone(), self.attempts);
        let start = Instant::now() + delay;
        self.tasks.spawn(async move {
            sleep_until(start).await;
            Event::Connected { address, attempt, result: connect(&endpoint, address).await }
        });
    }

    fn connected(&mut self, address: SocketAddr, attempt: u64, result: Result<Channel, transport::Error>) {
        // The name may have lost the address since.
        let Some(known) = self.addresses.get_mut(&address).filter(|known| known.attempt == attempt) else {
            return;
        };
        match result {
            Ok(channel) => {
                known.failures = 0;
                known.connected_at = Some(Instant::now());
                let server = Server::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX);
                self.state.send_modify(|state| {
                    state.ready.push(Connection { number: attempt, address, server });
                    state.failure = None;
                });
            }
            Err(error) => {
                known.failures += 1;
                let delay = retry_delay(known.failures);
                self.connect(address, delay);
                self.look_up_soon();
                if self.addresses.values().all(|address| address.failures > 0) {
                    self.fail(format!("{address}: {}", chain(&error)));
                }
            }
        }
    }

    /// A call has found a broken connection and removed it.
    fn broken(&mut self, address: SocketAddr) {
        let Some(known) = self.addresses.get(&address) else { return };
        // A server that accepts connections and closes them must not cost one for each call.
        let short = known.connected_at.is_some_and(|since| since.elapsed() < RETRY_MAX);
        self.connect(address, if short { RETRY_FIRST } else { Duration::ZERO });
        self.look_up_soon();
    }

    /// The server may have moved.
    fn look_up_soon(&mut self) {
        self.lookup_at = self.lookup_at.min(Instant::now() + LOOKUP_RETRY);
    }

    fn fail(&self, reason: String) {
        self.state.send_modify(|state| state.failure = Some(Status::unavailable(reason)));
    }
}

/// 100 ms, then 1.6 times as long after each failure, at most 1 s.
fn retry_delay(failures: u32) -> Duration {
    let exponent = failures.saturating_sub(1).min(10);
    (1..=exponent).fold(RETRY_FIRST, |delay, _| delay * 8 / 5).min(RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_delay_grows_to_one_second() {
        let delays = [1, 2, 3, 7, u32::MAX].map(|failures| retry_delay(failures).as_millis());
        assert_eq!(delays, [100, 160, 256, 1000, 1000]);
    }
}
