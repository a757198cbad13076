//! A service in this process, on free ports of the loopback, and clients of it.

use std::{fs, time::Duration};

use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tollgate::{
    api::proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::{
            RateLimitRequest, RateLimitResponse, rate_limit_response::DescriptorStatus,
            rate_limit_service_client::RateLimitServiceClient,
        },
    },
    server::{Addresses, Error, Server, ServerStats, WorkerPool},
    settings::{CATALOG, Settings, Sources},
    time::{Clock, Timestamp},
};
use tonic::{Status, transport::Channel};

/// Longer than anything here takes; a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Twenty-four seconds into a minute.
pub const START: Timestamp = Timestamp::from_nanos((1_790_000_040 + 24) * 1_000_000_000);

/// A running service.
pub struct Service {
    pub addresses: Addresses,
    pub clock: Clock,
    pub leave: mpsc::Sender<()>,
    pub ended: JoinHandle<Result<(), Error>>,
    pub rules: TempDir,
    pub counters: ServerStats,
}

/// Settings for a test: free ports, quick, rules in `rules`, and those given.
pub fn settings(rules: &TempDir, given: &[(&str, &str)]) -> Settings {
    let path = rules.path().to_str().unwrap();
    let quick = [
        ("rules.path", path),
        ("rules.poll_interval", "50ms"),
        ("grpc.listen", "127.0.0.1:0"),
        ("http.listen", "127.0.0.1:0"),
        ("admin.listen", "127.0.0.1:0"),
        ("metrics.listen", "127.0.0.1:0"),
        ("drain.delay", "0s"),
    ];
    let flags = quick.iter().chain(given).map(|(name, value)| {
        let setting = CATALOG.iter().find(|setting| setting.name == *name).unwrap();
        (setting, (*value).to_owned())
    });
    Sources { flags: flags.collect(), ..Sources::default() }.load().unwrap()
}

impl Service {
    /// A service with these rules, ready to answer.
    pub async fn start(rules: &str) -> Self {
        Self::start_with(rules, &[]).await
    }

    /// The same with these settings.
    pub async fn start_with(rules: &str, given: &[(&str, &str)]) -> Self {
        let service = Self::start_unready(rules, given).await;
        service.until_http("/readyz", 200).await;
        service
    }

    /// A service that need not become ready.
    pub async fn start_unready(rules: &str, given: &[(&str, &str)]) -> Self {
        Self::start_changed(rules, given, |_| ()).await
    }

    /// The same with settings that `change` has changed.
    pub async fn start_changed(
        rules: &str,
        given: &[(&str, &str)],
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        Self::start_by(WorkerPool::with_workers(2).unwrap(), rules, given, change).await
    }

    /// A service in the test's own thread, so that the test may stop its time and see its log.
    pub async fn start_here(rules: &str, given: &[(&str, &str)]) -> Self {
        let service = Self::start_by(WorkerPool::default(), rules, given, |_| ()).await;
        service.until_http("/readyz", 200).await;
        service
    }

    async fn start_by(
        workers: WorkerPool,
        rules: &str,
        given: &[(&str, &str)],
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("rules.yaml"), rules).unwrap();
        let clock = Clock::manual(START);
        let mut settings = settings(&folder, given);
        change(&mut settings);
        let server = Server::bind(settings, clock.clone()).await.unwrap().with_workers(workers);
        let (addresses, counters) = (server.addresses().unwrap(), server.stats());
        let (leave, left) = mpsc::channel(2);
        let ended = tokio::spawn(server.run(left));
        Self { addresses, clock, leave, ended, rules: folder, counters }
    }

    /// A client with a connection of its own.
    pub async fn client(&self) -> RateLimitServiceClient<Channel> {
        RateLimitServiceClient::connect(format!("http://{}", self.addresses.grpc)).await.unwrap()
    }

    /// Asks one request on a new connection.
    pub async fn ask(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        self.client().await.should_rate_limit(request).await.map(tonic::Response::into_inner)
    }

    /// The status of the only descriptor of a request that is answered.
    pub async fn status(&self, request: RateLimitRequest) -> DescriptorStatus {
        let mut answer = self.ask(request).await.unwrap();
        assert_eq!(answer.statuses.len(), 1);
        answer.statuses.remove(0)
    }

    /// The code and body of an HTTP request to the HTTP listener.
    pub async fn http(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        http(self.addresses.http, method, path, body).await.unwrap()
    }

    /// Waits until `path` is answered with `code`; the body of that answer.
    pub async fn until_http(&self, path: &str, code: u16) -> String {
        until(async || {
            let (answered, body) = self.http("GET", path, "").await;
            (answered == code).then_some(body)
        })
        .await
    }

    /// Moves the service's clock on.
    pub fn pass(&self, time: Duration) {
        self.clock.set(self.clock.now().plus(u64::try_from(time.as_nanos()).unwrap()));
    }
}

/// Asks again and again until there is something, which must not take long.
pub async fn until<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, found).await.expect("what was waited for has not come")
}

/// One HTTP/1.1 request on a connection of its own.
pub async fn http(
    address: std::net::SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    Ok((code, body.to_owned()))
}

/// A descriptor of these entries.
pub fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entries = entries.iter().map(|(key, value)| Entry { key: (*key).into(), value: (*value).into() });
    RateLimitDescriptor { entries: entries.collect(), ..RateLimitDescriptor::default() }
}

/// A request about these descriptors.
pub fn request(domain: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: domain.into(), descriptors, hits_addend: 0 }
}

/// A request about one descriptor of one entry.
pub fn one(domain: &str, key: &str, value: &str) -> RateLimitRequest {
    request(domain, vec![descriptor(&[(key, value)])])
}

/// The same request, with so many hits of each descriptor's own.
pub fn with_hits(mut request: RateLimitRequest, hits: u64) -> RateLimitRequest {
    for descriptor in &mut request.descriptors {
        descriptor.hits_addend = Some(hits);
    }
    request
}
