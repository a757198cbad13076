//! A service in this process, on free ports of the loopback, and its clients.

use std::{fs, net::SocketAddr, time::Duration};

use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    net::TcpStream,
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tollgate::{
    server::{ListenerAddresses, Server, ServerStats, ServiceError, StopSignal, WorkerPool},
    settings::{Setting, Settings, SettingsSources},
};
use tollgate_counter::time::{Clock, Timestamp};
use tollgate_wire::proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{
        RateLimitRequest, RateLimitResponse, rate_limit_response::DescriptorStatus,
        rate_limit_service_client::RateLimitServiceClient,
    },
};
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

/// Longer than any step of a test takes; a test that waits this long fails.
pub const TIMEOUT: Duration = Duration::from_secs(20);

/// Twenty-four seconds into a minute.
pub const START: Timestamp = Timestamp::from_nanos((1_790_000_040 + 24) * 1_000_000_000);

/// A running service.
pub struct Service {
    pub addresses: ListenerAddresses,
    pub clock: Clock,
    pub shutdown: mpsc::Sender<StopSignal>,
    pub task: JoinHandle<Result<(), ServiceError>>,
    pub rules: TempDir,
    pub counters: ServerStats,
}

/// Settings for a test: free ports, short delays, the rules in `rules`, and the given settings.
pub fn settings(rules: &TempDir, overrides: &[(&str, &str)]) -> Settings {
    let path = rules.path().to_str().unwrap();
    let defaults = [
        ("rules.path", path),
        ("rules.poll_interval", "50ms"),
        ("grpc.listen", "127.0.0.1:0"),
        ("http.listen", "127.0.0.1:0"),
        ("admin.listen", "127.0.0.1:0"),
        ("metrics.listen", "127.0.0.1:0"),
        ("drain.delay", "0s"),
    ];
    let store = shared_store();
    let store = store.iter().map(|(name, value)| (*name, value.as_str()));
    let flags = defaults.into_iter().chain(store).chain(overrides.iter().copied()).map(|(name, value)| {
        let setting = Setting::named(name).unwrap();
        (setting, value.to_owned())
    });
    SettingsSources { flags: flags.collect(), ..SettingsSources::default() }.load().unwrap()
}

/// Whether the suite runs on counters in memory.
pub fn is_store_in_memory() -> bool {
    shared_store().is_empty()
}

/// How often a test repeats what it does: `core` times, or `all` times in `tests/run --all`, which sets
/// `TOLLGATE_TEST_ALL`.
#[expect(clippy::disallowed_methods, reason = "the suite is told how much to repeat")]
pub fn rounds(core: usize, all: usize) -> usize {
    if std::env::var_os("TOLLGATE_TEST_ALL").is_some() { all } else { core }
}

/// The settings of the store on which the suite runs, if that is not memory: `TOLLGATE_TEST_REDIS` has the address of a
/// server. Each service has counters of its own.
#[expect(clippy::disallowed_methods, reason = "the suite is told which store to use")]
fn shared_store() -> Vec<(&'static str, String)> {
    let Ok(url) = std::env::var("TOLLGATE_TEST_REDIS") else { return Vec::new() };
    let prefix = format!("{:016x}:", rand::random::<u64>());
    vec![
        ("store.kind", "redis".to_owned()),
        ("store.redis.urls", url),
        ("store.redis.prefix", prefix),
        ("store.redis.timeout", "10s".to_owned()),
    ]
}

impl Service {
    /// A service with these rules, ready to answer.
    pub async fn start(rules: &str) -> Self {
        Self::start_with(rules, &[]).await
    }

    /// The same with these settings.
    pub async fn start_with(rules: &str, overrides: &[(&str, &str)]) -> Self {
        let service = Self::start_unready(rules, overrides).await;
        service.until_http("/readyz", 200).await;
        service
    }

    /// Ends it as a supervisor does.
    pub async fn terminate(&self) {
        self.shutdown.send(StopSignal::Terminate).await.unwrap();
    }

    /// A service that need not become ready.
    pub async fn start_unready(rules: &str, overrides: &[(&str, &str)]) -> Self {
        Self::start_modified(rules, overrides, |_| ()).await
    }

    /// The same after `change` has modified the settings.
    pub async fn start_modified(
        rules: &str,
        overrides: &[(&str, &str)],
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        Self::start_on(WorkerPool::with_workers(2).unwrap(), rules, overrides, change).await
    }

    /// A service on the thread of the test, so that the test can pause its time and capture its log.
    pub async fn start_on_this_thread(rules: &str, overrides: &[(&str, &str)]) -> Self {
        let service = Self::start_on(WorkerPool::default(), rules, overrides, |_| ()).await;
        service.until_http("/readyz", 200).await;
        service
    }

    async fn start_on(
        crew: WorkerPool,
        rules: &str,
        overrides: &[(&str, &str)],
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("rules.yaml"), rules).unwrap();
        let clock = Clock::manual(START);
        let mut settings = settings(&folder, overrides);
        change(&mut settings);
        let server = Server::bind(settings, clock.clone()).await.unwrap().with_workers(crew);
        let (addresses, counters) = (server.addresses().unwrap(), server.stats());
        let (shutdown, shutdown_signal) = mpsc::channel(2);
        let task = tokio::spawn(server.run(shutdown_signal));
        Self { addresses, clock, shutdown, task, rules: folder, counters }
    }

    /// A client with its own connection.
    pub async fn client(&self) -> RateLimitServiceClient<Channel> {
        RateLimitServiceClient::new(self.channel().await)
    }

    /// A connection to the gRPC port, which refuses connections while the service starts.
    pub async fn channel(&self) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.addresses.grpc)).unwrap();
        until(async || endpoint.connect().await.ok()).await
    }

    /// Sends one request on a new connection.
    pub async fn call(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        self.client().await.should_rate_limit(request).await.map(tonic::Response::into_inner)
    }

    /// The status of the only descriptor of a request, which must be answered.
    pub async fn status(&self, request: RateLimitRequest) -> DescriptorStatus {
        let mut answer = self.call(request).await.unwrap();
        assert_eq!(answer.statuses.len(), 1);
        answer.statuses.remove(0)
    }

    /// The code and body of an HTTP request to the HTTP listener.
    pub async fn http(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        http(self.addresses.http, method, path, body).await.unwrap()
    }

    /// Waits until `path` is answered with `code`, and returns the body.
    pub async fn until_http(&self, path: &str, code: u16) -> String {
        until(async || {
            let (answered, body) = self.http("GET", path, "").await;
            (answered == code).then_some(body)
        })
        .await
    }

    /// Advances the clock of the service.
    pub fn advance(&self, time: Duration) {
        self.clock.set(self.clock.now().plus(u64::try_from(time.as_nanos()).unwrap()));
    }
}

/// Repeats `ask` until it returns a value; fails after the timeout.
pub async fn until<T>(mut condition: impl AsyncFnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = condition().await {
                return found;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TIMEOUT, found).await.expect("the condition did not hold within the timeout")
}

/// An answer over HTTP/1.1 whose head has arrived.
pub struct Answer<S> {
    pub code: u16,
    pub head: String,
    pub body: BufReader<S>,
}

impl Answer<TcpStream> {
    /// The answer to a GET request with these header lines on a new connection.
    pub async fn get(address: SocketAddr, headers: &str, path: &str) -> Self {
        Self::to(TcpStream::connect(address).await.unwrap(), headers, "GET", path, "").await.unwrap()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Answer<S> {
    /// The answer to a request with these header lines, after which the server closes the connection.
    pub async fn to(
        mut stream: S,
        headers: &str,
        method: &str,
        path: &str,
        body: &str,
    ) -> std::io::Result<Self> {
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nconnection: close\r\n{headers}");
        let whole = format!("{head}content-length: {length}\r\n\r\n{body}");
        stream.write_all(whole.as_bytes()).await?;
        let (mut head, mut body) = (String::new(), BufReader::new(stream));
        while !head.ends_with("\r\n\r\n") && body.read_line(&mut head).await? > 0 {}
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
        Ok(Self { code, head, body })
    }

    /// The code and the whole body.
    async fn whole(mut self) -> std::io::Result<(u16, String)> {
        let mut body = String::new();
        self.body.read_to_string(&mut body).await?;
        Ok((self.code, body))
    }
}

/// The code and body of a request on a new connection.
pub async fn http(
    address: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> std::io::Result<(u16, String)> {
    let stream = TcpStream::connect(address).await?;
    Answer::to(stream, "host: localhost\r\n", method, path, body).await?.whole().await
}

/// The code and body of a request with these header lines alone on a new connection.
pub async fn send(address: SocketAddr, headers: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let stream = TcpStream::connect(address).await.unwrap();
    Answer::to(stream, headers, method, path, body).await.unwrap().whole().await.unwrap()
}

/// A descriptor with these entries.
pub fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entries = entries.iter().map(|(key, value)| Entry { key: (*key).into(), value: (*value).into() });
    RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() }
}

/// A request with these descriptors.
pub fn request(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: domain.into(), descriptors, hits_addend: 0 }
}

/// A request with one descriptor of one entry.
pub fn request_for(domain: &str, key: &str, value: &str) -> RateLimitRequest {
    request(domain, vec![descriptor(&[(key, value)])])
}

/// The same request with this hits addend in each descriptor.
pub fn with_hits(mut request: RateLimitRequest, hits: u64) -> RateLimitRequest {
    for descriptor in &mut request.descriptors {
        descriptor.hits_addend = Some(hits);
    }
    request
}

/// A ready replica of a cluster, on the clock of the system.
pub async fn replica(rules_text: &str, secret: &TempDir, seeds: &str) -> Service {
    replica_with(rules_text, secret, seeds, &[]).await
}

/// A ready replica with these settings.
pub async fn replica_with(
    rules_text: &str,
    secret: &TempDir,
    seeds: &str,
    overrides: &[(&str, &str)],
) -> Service {
    let rules = tempfile::tempdir().unwrap();
    fs::write(rules.path().join("rules.yaml"), rules_text).unwrap();
    let file = secret.path().join("secret");
    fs::write(&file, "a secret that replicas share").unwrap();
    let of_cluster = [
        ("cluster.listen", "127.0.0.1:0"),
        ("cluster.secret_file", file.to_str().unwrap()),
        ("cluster.seed", seeds),
        ("tls.poll_interval", "50ms"),
    ];
    let overrides = [&of_cluster[..], overrides].concat();
    let clock = Clock::system();
    let server = Server::bind(settings(&rules, &overrides), clock.clone()).await.unwrap();
    let (addresses, counters) = (server.addresses().unwrap(), server.stats());
    let (shutdown, shutdown_signal) = mpsc::channel(2);
    let task = tokio::spawn(server.run(shutdown_signal));
    let service = Service { addresses, clock, shutdown, task, rules, counters };
    service.until_http("/readyz", 200).await;
    service
}

/// The page `/cluster`.
pub async fn cluster_view(replica: &Service) -> serde_json::Value {
    // For replicas with this admin token; others do not look at it.
    let headers = "host: localhost\r\nauthorization: Bearer secret\r\n";
    let (_, view) = send(replica.addresses.admin, headers, "GET", "/cluster", "").await;
    serde_json::from_str(&view).unwrap()
}

/// Waits until this replica serves with another one, and no slot moves.
pub async fn until_linked(replica: &Service) {
    until(async || {
        let view = cluster_view(replica).await;
        let members = view["members"].as_array().unwrap();
        let serving = members.iter().filter(|member| member["state"] == "serving").count();
        (serving == 2 && view["moving"] == 0).then_some(())
    })
    .await;
}
