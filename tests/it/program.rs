//! The program as a child process, on free ports of the loopback.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::PathBuf,
    process::{Output, Stdio},
};

use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    sync::mpsc,
    time::timeout,
};

use crate::harness::{TIMEOUT, http, until};

/// The program under test.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_tollgate");

/// A running `tollgate serve`.
pub struct Program {
    process: Child,
    pub grpc: SocketAddr,
    pub http: SocketAddr,
    pub admin: SocketAddr,
    pub metrics: SocketAddr,
    log: mpsc::UnboundedReceiver<Value>,
    _rules: tempfile::TempDir,
}

impl Program {
    /// Starts it with these rules and flags, and waits until it is ready.
    pub async fn start(rules: &str, flags: &[&str]) -> Self {
        Self::start_command(Command::new(PROGRAM), rules, flags).await
    }

    /// The same with a command that runs the program with the arguments appended to it.
    pub async fn start_command(command: Command, rules: &str, flags: &[&str]) -> Self {
        let program = Self::start_unready(command, rules, flags).await;
        let is_ready = async || (http(program.http, "GET", "/readyz", "").await.ok()?.0 == 200).then_some(());
        until(is_ready).await;
        program
    }

    /// The same without waiting until it is ready.
    pub async fn start_unready(mut command: Command, rules: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("rules.yaml"), rules).unwrap();
        command.args(["serve", "--log-format", "json", "--rules"]).arg(folder.path()).args(flags);
        for listener in ["grpc", "http", "admin", "metrics"] {
            command.args([format!("--{listener}-listen"), "127.0.0.1:0".to_owned()]);
        }
        let mut process = command.stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let mut addresses = Vec::new();
        while addresses.len() < 4 {
            let line = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap().unwrap();
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["message"] == "listening" {
                addresses.push(event["address"].as_str().unwrap().parse().unwrap());
            }
        }
        let (sender, log) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                // A test that reads no log drops the receiver with the process.
                let _ = sender.send(serde_json::from_str(&line).unwrap());
            }
        });
        let [grpc, http_at, admin, metrics] = addresses[..] else { unreachable!("four were read") };
        Self { process, grpc, http: http_at, admin, metrics, log, _rules: folder }
    }

    /// Sends a signal to the process.
    pub async fn signal(&self, name: &str) {
        let id = self.process.id().unwrap().to_string();
        let sent = Command::new("kill").args([format!("-{name}"), id]).status().await;
        assert!(sent.unwrap().success());
    }

    /// Waits for a log line with this message and returns it.
    pub async fn until_logged(&mut self, message: &str) -> Value {
        loop {
            let event = timeout(TIMEOUT, self.log.recv()).await.expect(message).expect(message);
            if event["message"] == message {
                return event;
            }
        }
    }

    /// Ends the process with SIGTERM, and returns the log lines that nothing has read yet.
    #[allow(dead_code, reason = "the tests of the shared store use it")]
    pub async fn end(mut self) -> Vec<Value> {
        self.signal("TERM").await;
        let mut events = Vec::new();
        while let Some(event) = timeout(TIMEOUT, self.log.recv()).await.unwrap() {
            events.push(event);
        }
        events
    }

    /// Waits until the process ends; `None` if a signal killed it.
    pub async fn exit_code(&mut self) -> Option<i32> {
        timeout(TIMEOUT, self.process.wait()).await.unwrap().unwrap().code()
    }

    /// Name and CPU time of each thread, by thread id.
    pub fn cpu_nanos(&self) -> BTreeMap<u32, (String, u64)> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.id().unwrap())).unwrap();
        let tasks = tasks.map(|task| task.unwrap().path());
        let read = |task: PathBuf| {
            let id = task.file_name()?.to_str()?.parse().ok()?;
            // A thread may have ended meanwhile.
            let name = fs::read_to_string(task.join("comm")).ok()?;
            let times = fs::read_to_string(task.join("schedstat")).ok()?;
            Some((id, (name, times.split(' ').next()?.parse().ok()?)))
        };
        tasks.filter_map(read).collect()
    }

    /// The peak of resident memory.
    pub fn peak_bytes(&self) -> u64 {
        self.status_bytes("VmHWM:")
    }

    /// The resident memory.
    #[allow(dead_code, reason = "the tests of memory use it")]
    pub fn resident_bytes(&self) -> u64 {
        self.status_bytes("VmRSS:")
    }

    fn status_bytes(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id().unwrap())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }
}

/// Runs the program.
pub async fn tollgate(arguments: &[&str]) -> Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(arguments);
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

/// What it has printed.
pub fn printed(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap() + &String::from_utf8(output.stderr.clone()).unwrap()
}
