//! The program as a child process, on free ports of the loopback.

use std::{collections::BTreeMap, fs, net::SocketAddr, path::PathBuf, process::Stdio};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
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
    _rules: tempfile::TempDir,
}

impl Program {
    /// Starts it with these rules and flags, and waits until it is ready.
    pub async fn start(rules: &str, flags: &[&str]) -> Self {
        Self::start_command(Command::new(PROGRAM), rules, flags).await
    }

    /// The same with a command that runs the program with the arguments appended to it.
    pub async fn start_command(mut command: Command, rules: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("rules.yaml"), rules).unwrap();
        command.args(["serve", "--log-format", "json", "--rules"]).arg(folder.path()).args(flags);
        for listener in ["grpc", "http", "admin", "metrics"] {
            command.args([format!("--{listener}-listen"), "127.0.0.1:0".to_owned()]);
        }
        let mut process = command.stderr(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let mut lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let mut addresses = Vec::new();
        while addresses.len() < 3 {
            let line = timeout(TIMEOUT, lines.next_line()).await.unwrap().unwrap().unwrap();
            let event: serde_json::Value = serde_json::from_str(&line).unwrap();
            if event["message"] == "listening" {
                addresses.push(event["address"].as_str().unwrap().parse().unwrap());
            }
        }
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let [grpc, http_at, admin] = addresses[..] else { unreachable!("three were read") };
        until(async || (http(http_at, "GET", "/readyz", "").await.ok()?.0 == 200).then_some(())).await;
        Self { process, grpc, http: http_at, admin, _rules: folder }
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
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id().unwrap())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }
}
