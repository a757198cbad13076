//! Starts servers, and counts what a client does.

use std::{
    collections::HashMap,
    env,
    net::SocketAddr,
    path::PathBuf,
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    process::{ChildStdin, ChildStdout, Command},
    time::{sleep, timeout},
};
use tollgate_client::{Client, Decision, Descriptor, Metrics, Options, Outcome, Request, Source};

/// Bounds each wait of the tests. Long, so that a busy machine does not look like an outage.
pub const PATIENCE: Duration = Duration::from_secs(20);
pub const FREE: &str = "127.0.0.1:0";
pub const HOUR: Duration = Duration::from_secs(3600);

pub const RULES: &str = "
domain: edge
descriptors:
  - key: user
    rate_limit: {name: of-user, unit: hour, requests_per_unit: 3, algorithm: sliding_log}
  - key: group
    rate_limit: {unit: hour, requests_per_unit: 100, algorithm: sliding_log}
  - key: many
    rate_limit: {unit: hour, requests_per_unit: 1000, algorithm: sliding_log}
  - key: second
    rate_limit: {unit: second, requests_per_unit: 1000000, algorithm: fixed_window}
  - key: fast
    rate_limit: {unit: second, requests_per_unit: 1000000, algorithm: token_bucket}
  - key: turn
    rate_limit: {unit: minute, requests_per_unit: 60, algorithm: leaky_queue, burst: 5}
";

/// The program of the server: that of the variable `TOLLGATE`, otherwise the one that cargo has built with these tests.
fn program() -> PathBuf {
    let beside_tests = || Some(env::current_exe().ok()?.parent()?.parent()?.join("tollgate"));
    let program = env::var_os("TOLLGATE").map(PathBuf::from).or_else(beside_tests);
    let program = program.filter(|program| program.is_file());
    program.expect(
        "set TOLLGATE to the path of the program tollgate, or build it with `cargo build --package tollgate`",
    )
}

/// A running `tollgate serve`, which ends with the test.
pub struct Server {
    /// The address of the gRPC listener.
    pub address: SocketAddr,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Server {
    pub async fn start(rules: &str) -> Self {
        Self::start_with(rules, &[]).await
    }

    /// Starts a server with these flags, and waits until it is ready.
    pub async fn start_with(rules: &str, flags: &[&str]) -> Self {
        let mut child = Command::new("python3")
            .args([concat!(env!("CARGO_MANIFEST_DIR"), "/../test_server.py"), rules])
            .args(flags)
            .env("TOLLGATE", program())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 starts the server");
        let input = child.stdin.take().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let addresses = output.next_line().await.unwrap().expect("the server starts");
        let addresses: HashMap<String, SocketAddr> = serde_json::from_str(&addresses).unwrap();
        Self { address: addresses["grpc"], input, output }
    }

    pub fn target(&self) -> String {
        self.address.to_string()
    }

    /// Ends the server at once.
    pub async fn kill(&mut self) {
        self.input.write_all(b"kill\n").await.unwrap();
        self.output.next_line().await.unwrap();
    }
}

/// Forwards connections to a server, and its answers unless they are lost. It ends with the runtime of the test.
pub struct Relay {
    pub address: SocketAddr,
    /// Whether no client learns of the answers to what the server reads.
    pub loses_answers: Arc<AtomicBool>,
}

impl Relay {
    pub async fn start(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(FREE).await.unwrap();
        let address = listener.local_addr().unwrap();
        let loses_answers = Arc::new(AtomicBool::new(false));
        let loses = loses_answers.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (mut from_client, to_client) = client.into_split();
                let (from_server, mut to_server) = TcpStream::connect(server).await.unwrap().into_split();
                tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
                tokio::spawn(forward_answers(from_server, to_client, loses.clone()));
            }
        });
        Self { address, loses_answers }
    }
}

async fn forward_answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, loses: Arc<AtomicBool>) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if !loses.load(Ordering::SeqCst) && to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// What a client has counted.
#[derive(Default)]
pub struct Counts {
    outcomes: Mutex<HashMap<Outcome, usize>>,
    batches: Mutex<Vec<usize>>,
    lost_hits: AtomicU64,
}

impl Metrics for Counts {
    fn checked(&self, outcome: Outcome, _: Duration) {
        *self.outcomes.lock().unwrap().entry(outcome).or_default() += 1;
    }

    fn sent(&self, batch: usize) {
        self.batches.lock().unwrap().push(batch);
    }

    fn lost(&self, hits: u64) {
        self.lost_hits.fetch_add(hits, Ordering::SeqCst);
    }
}

impl Counts {
    pub fn of(&self, outcome: Outcome) -> usize {
        self.outcomes.lock().unwrap().get(&outcome).copied().unwrap_or(0)
    }

    pub fn batches(&self) -> Vec<usize> {
        self.batches.lock().unwrap().clone()
    }

    pub fn lost_hits(&self) -> u64 {
        self.lost_hits.load(Ordering::SeqCst)
    }
}

pub fn options() -> Options {
    Options { timeout: PATIENCE, ..Options::default() }
}

/// Options of a client that counts, and its counts.
pub fn counted() -> (Options, Arc<Counts>) {
    let counts = Arc::new(Counts::default());
    (Options { metrics: counts.clone(), ..options() }, counts)
}

pub fn client(target: impl AsRef<str>, options: Options) -> Client {
    Client::new(target.as_ref(), options).unwrap()
}

pub fn request(key: &str, value: &str) -> Request {
    Request::new("edge", [Descriptor::new([(key, value)])])
}

/// A decision by the server or the deny cache.
pub async fn check(client: &Client, request: &Request) -> Decision {
    let decision = client.check(request).await.unwrap();
    assert!(decision.source != Source::Default, "{decision:?}");
    decision
}

/// Whether the server decides.
pub async fn answers(client: &Client) -> bool {
    client.check(&request("many", "x")).await.unwrap().source == Source::Server
}

/// Waits until the condition holds.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let holds = async {
        while !condition().await {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(PATIENCE, holds).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"));
}

/// An HTTP response.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub headers: HashMap<String, String>,
    pub body: String,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// Sends a GET request on a connection of its own.
pub async fn get(address: SocketAddr, path: &str, headers: &[(&str, &str)]) -> Response {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n{lines}\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut text = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut text)).await.unwrap().unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let mut lines = head.lines();
    let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers = lines.map(|line| line.split_once(": ").unwrap());
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
    Response { status, headers, body: body.to_owned() }
}

/// What is left of the tightest limit.
pub async fn remaining(client: &Client, request: &Request) -> u64 {
    let decision = client.peek(request).await.unwrap();
    decision.tightest().unwrap().remaining
}
