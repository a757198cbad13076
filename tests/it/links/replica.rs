//! The link layer of a replica: it sends queued batches and records events and received batches.

use std::{
    collections::{HashMap, VecDeque},
    fs,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use prost::bytes::Bytes;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tollgate_cluster::{
    ClusterError, Departure, MemberId, Trust,
    link::{LinkHandler, LinkListener, LinkSettings, Links},
};
use tollgate_counter::time::{Clock, Timestamp};

use crate::{harness::until, links::proxy::Proxy};

/// A valid secret.
pub const SECRET: &str = "a secret that replicas share";

/// An event of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    Linked(MemberId),
    Lost(MemberId, Departure),
}

/// Queued batches for peers, and what was received from them.
#[derive(Default)]
pub struct RecordedTraffic {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: HashMap<MemberId, VecDeque<Bytes>>,
    received: HashMap<MemberId, Vec<Bytes>>,
    heard: HashMap<MemberId, u64>,
    events: Vec<Event>,
    addresses: HashMap<MemberId, String>,
}

impl LinkHandler for RecordedTraffic {
    fn connected(&self, peer: MemberId, address: &str) {
        let mut state = self.state.lock().unwrap();
        state.events.push(Event::Linked(peer));
        state.addresses.insert(peer, address.to_owned());
    }

    fn heard(&self, peer: MemberId) {
        *self.state.lock().unwrap().heard.entry(peer).or_default() += 1;
    }

    fn received(&self, peer: MemberId, batch: Bytes) {
        self.state.lock().unwrap().received.entry(peer).or_default().push(batch);
    }

    fn next_batch(&self, peer: MemberId) -> Option<Bytes> {
        self.state.lock().unwrap().waiting.get_mut(&peer)?.pop_front()
    }

    fn disconnected(&self, peer: MemberId, reason: Departure) {
        self.state.lock().unwrap().events.push(Event::Lost(peer, reason));
    }
}

/// A replica with links.
pub struct Replica {
    pub links: Arc<Links>,
    pub traffic: Arc<RecordedTraffic>,
    pub listen: SocketAddr,
    pub task: JoinHandle<Result<(), ClusterError>>,
}

/// Trust by the secrets of a file.
pub fn trust(file: PathBuf) -> Trust {
    Trust { files: None, secret_file: Some(file), poll_interval: Duration::from_millis(50) }
}

/// A file of secrets.
pub fn secrets(lines: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secrets");
    fs::write(&file, lines).unwrap();
    (folder, file)
}

/// Settings on a free port of the loopback.
pub fn settings(trust: Trust, seeds: &[&str]) -> LinkSettings {
    let seeds = seeds.iter().map(|seed| (*seed).to_owned()).collect();
    LinkSettings { listen: "127.0.0.1:0".parse().unwrap(), advertise: None, seeds, trust }
}

impl Replica {
    /// A replica with these seeds.
    pub async fn start(seeds: &[&str]) -> Self {
        Self::start_modified(seeds, |_| ()).await
    }

    /// The same after `change` has modified the settings.
    pub async fn start_modified(seeds: &[&str], change: impl FnOnce(&mut LinkSettings)) -> Self {
        let (_folder, file) = secrets(SECRET);
        let mut settings = settings(trust(file), seeds);
        change(&mut settings);
        Self::start_with(settings, MemberId::starting_at(Timestamp::EPOCH), Clock::system()).await
    }

    /// A replica that its peers reach only through `proxy`.
    pub async fn start_behind(proxy: &Proxy, seeds: &[&str]) -> Self {
        let replica =
            Self::start_modified(seeds, |settings| settings.advertise = Some(proxy.address.to_string()))
                .await;
        proxy.set_target(replica.listen);
        replica
    }

    /// Two replicas that are linked.
    pub async fn pair() -> (Self, Self) {
        let one = Self::start(&[]).await;
        let two = Self::start(&[&one.address()]).await;
        one.until_linked(&two).await;
        two.until_linked(&one).await;
        (one, two)
    }

    /// Two replicas that are linked, each through a proxy before it.
    pub async fn pair_behind_proxies() -> ([Proxy; 2], Self, Self) {
        let (to_one, to_two) = (Proxy::start().await, Proxy::start().await);
        let one = Self::start_behind(&to_one, &[]).await;
        let two = Self::start_behind(&to_two, &[&one.address()]).await;
        one.until_linked(&two).await;
        two.until_linked(&one).await;
        ([to_one, to_two], one, two)
    }

    pub async fn start_with(settings: LinkSettings, local_id: MemberId, clock: Clock) -> Self {
        let (links, listening) = LinkListener::bind(settings, local_id, clock).await.unwrap();
        let (traffic, listen) = (Arc::new(RecordedTraffic::default()), listening.address());
        let task = tokio::spawn(listening.run(traffic.clone()));
        Self { links, traffic, listen, task }
    }

    pub fn id(&self) -> MemberId {
        self.links.local_id()
    }

    pub fn address(&self) -> String {
        self.links.address().to_owned()
    }

    pub fn send(&self, to: MemberId, batch: impl Into<Bytes>) {
        self.traffic.state.lock().unwrap().waiting.entry(to).or_default().push_back(batch.into());
        self.links.wake(to);
    }

    /// Ends it like a killed process: its sockets are closed without a goodbye.
    pub async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    pub fn events(&self) -> Vec<Event> {
        self.traffic.state.lock().unwrap().events.clone()
    }

    pub fn received(&self, from: MemberId) -> Vec<Bytes> {
        self.traffic.state.lock().unwrap().received.get(&from).cloned().unwrap_or_default()
    }

    pub fn received_count(&self, from: MemberId) -> usize {
        self.traffic.state.lock().unwrap().received.get(&from).map_or(0, Vec::len)
    }

    pub fn heard(&self, from: MemberId) -> u64 {
        self.traffic.state.lock().unwrap().heard.get(&from).copied().unwrap_or_default()
    }

    /// Waits for an event.
    pub async fn until(&self, event: Event) {
        until(async || self.events().contains(&event).then_some(())).await;
    }

    pub async fn until_linked(&self, other: &Self) {
        self.until(Event::Linked(other.id())).await;
    }

    pub async fn until_received(&self, from: MemberId, batches: usize) {
        until(async || (self.received_count(from) >= batches).then_some(())).await;
    }
}
