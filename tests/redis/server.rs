//! Real Redis servers on the loopback.

use std::{
    fs,
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use redis::{Client, FromRedisValue};
use tempfile::TempDir;

/// How long a condition may take to come true.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The name of the configuration file of a server, in its folder.
const CONFIGURATION: &str = "redis.conf";

/// A running server. It is killed when this is dropped.
pub struct Server {
    process: Child,
    port: u16,
    arguments: Vec<String>,
    folder: TempDir,
}

impl Server {
    /// Starts a server with these further arguments.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_with("", arguments)
    }

    /// Starts a sentinel that watches the master at this port as `counters`.
    pub fn start_sentinel(master: u16) -> Self {
        Self::start_sentinel_with(master, "")
    }

    /// The same with these further lines of configuration.
    pub fn start_sentinel_with(master: u16, more: &str) -> Self {
        let configuration = format!(
            "sentinel monitor counters 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds counters 1000\n\
             sentinel failover-timeout counters 5000\n{more}"
        );
        Self::start_with(&configuration, &["--sentinel"])
    }

    /// Starts a server that has a port with TLS beside, and returns that port.
    pub fn start_tls(arguments: &[&str]) -> (Self, u16) {
        let port = free_port();
        let port_text = port.to_string();
        let tls = ["--tls-port", &port_text];
        (Self::start(&[&tls[..], arguments].concat()), port)
    }

    fn start_with(configuration: &str, arguments: &[&str]) -> Self {
        // Another process may take the port before the server does.
        for _ in 0..10 {
            let port = free_port();
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join(CONFIGURATION), configuration).unwrap();
            let arguments: Vec<String> = arguments.iter().copied().map(str::to_owned).collect();
            let mut server = Self { process: spawn(&arguments, port, &folder), port, arguments, folder };
            if server.answers_or_ends() {
                return server;
            }
        }
        panic!("the server found no free port, or refuses {arguments:?}");
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Stops the process without a chance to clean up.
    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts it again on the same port, with the data that is in its folder.
    pub fn restart(&mut self) {
        self.process = spawn(&self.arguments, self.port, &self.folder);
        assert!(self.answers_or_ends(), "the server ended at its start");
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// Runs a command.
    pub fn run<T: FromRedisValue>(&self, command: &str) -> T {
        self.try_run(command).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// The same, logged in with this password.
    pub fn run_with_password<T: FromRedisValue>(&self, password: &str, command: &str) -> T {
        let url = format!("redis://:{password}@127.0.0.1:{}", self.port);
        run_at(&url, command).unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    pub fn try_run<T: FromRedisValue>(&self, command: &str) -> redis::RedisResult<T> {
        run_at(&self.url(), command)
    }

    fn answers_or_ends(&mut self) -> bool {
        let started = Instant::now();
        loop {
            if self.process.try_wait().unwrap().is_some() {
                return false;
            }
            // Whatever it answers, even that it demands a password.
            if std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return true;
            }
            assert!(started.elapsed() < PATIENCE, "the server does not answer");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn run_at<T: FromRedisValue>(url: &str, command: &str) -> redis::RedisResult<T> {
    let mut connection = Client::open(url)?.get_connection_with_timeout(PATIENCE)?;
    let mut words = command.split_whitespace();
    let mut cmd = redis::cmd(words.next().unwrap());
    words.for_each(|word| {
        cmd.arg(word);
    });
    cmd.query(&mut connection)
}

fn spawn(arguments: &[String], port: u16, folder: &TempDir) -> Child {
    let mut command = Command::new("redis-server");
    command.arg(CONFIGURATION).args([
        "--port",
        &port.to_string(),
        "--bind",
        "127.0.0.1",
        "--daemonize",
        "no",
    ]);
    if !arguments.contains(&"--sentinel".to_owned()) {
        command.args(["--save", ""]);
    }
    command.args(arguments).current_dir(folder.path());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
        .spawn()
        .unwrap_or_else(|error| panic!("redis-server is needed in the PATH (tests/run installs it): {error}"))
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
