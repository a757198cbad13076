//! CPU time of the server for each decision: by `ShouldRateLimit` with one descriptor, and by `CheckStream` with
//! batches of 32 requests. The calls are on one connection, 64 at a time, for 1,000 keys.
//!
//! `cargo bench --bench stream`; the target for a batch is 0.5 us.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on ends")]

use futures_util::stream::{self, StreamExt as _};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tollgate_wire::proto::{
    envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient,
    tollgate::v1::{
        CheckRequest, Descriptor, Entry, Question, Request, question_answer::Result as Answered,
        rate_limiter_client::RateLimiterClient,
    },
};

#[path = "../tests/it/harness.rs"]
#[expect(dead_code, reason = "tests use the rest")]
mod harness;
#[path = "../tests/it/program.rs"]
#[expect(dead_code, reason = "tests use the rest")]
mod program;

use harness::request_for;
use program::Program;

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 1000000000, algorithm: fixed_window}}
";
const BATCH: u64 = 32;
const OPEN: usize = 64;
const KEYS: u64 = 1_000;
const ROUNDS: usize = 3;
const CALLS: u64 = 30_000;
const QUESTIONS: u64 = 20_000;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let program = Program::start(RULES, &[]).await;
    for round in 0..=ROUNDS {
        let before = cpu_us(&program);
        should_rate_limit(&program).await;
        let calls = (cpu_us(&program) - before) / CALLS as f64;
        let before = cpu_us(&program);
        check_stream(&program).await;
        let batches = (cpu_us(&program) - before) / (QUESTIONS * BATCH) as f64;
        // The first round warms the process.
        if round > 0 {
            println!("CPU a decision (us): ShouldRateLimit {calls:.2}, CheckStream {batches:.3}");
        }
    }
}

/// The CPU time of all threads of the server, in microseconds.
fn cpu_us(program: &Program) -> f64 {
    program.cpu_nanos().values().map(|(_, nanos)| nanos).sum::<u64>() as f64 / 1_000.0
}

fn user(number: u64) -> String {
    format!("user-{}-of-the-key-space", number % KEYS)
}

async fn should_rate_limit(program: &Program) {
    let client = RateLimitServiceClient::connect(format!("http://{}", program.grpc)).await.unwrap();
    let calls = stream::iter(0..CALLS).map(|number| {
        let (mut client, request) = (client.clone(), request_for("shop", "user", &user(number)));
        async move { client.should_rate_limit(request).await.unwrap() }
    });
    assert_eq!(calls.buffer_unordered(OPEN).count().await as u64, CALLS);
}

fn question(number: u64) -> Question {
    let request = |key| {
        let entry = Entry { key: "user".into(), value: user(key).into() };
        let descriptor = Descriptor { entries: vec![entry], ..Descriptor::default() };
        Request { domain: "shop".into(), descriptors: vec![descriptor], ..Request::default() }
    };
    let requests = (number * BATCH..(number + 1) * BATCH).map(request).collect();
    Question { number, check: Some(CheckRequest { requests, mode: 0 }), timeout: None }
}

async fn check_stream(program: &Program) {
    let mut client = RateLimiterClient::connect(format!("http://{}", program.grpc)).await.unwrap();
    // The credits bound it. A send never waits, so answers are always read.
    let (questions, sent) = mpsc::unbounded_channel();
    let mut answers = client.check_stream(UnboundedReceiverStream::new(sent)).await.unwrap().into_inner();
    let (mut asked, mut answered) = (0, 0);
    while answered < QUESTIONS {
        let answer = answers.message().await.unwrap().unwrap();
        if let Some(Answered::Check(response)) = answer.result {
            assert_eq!(response.answers.len() as u64, BATCH);
            answered += 1;
        }
        for _ in 0..u64::from(answer.credits).min(QUESTIONS - asked) {
            questions.send(question(asked)).unwrap();
            asked += 1;
        }
    }
}
