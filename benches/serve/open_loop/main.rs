//! Sends HTTP/2 requests in an open loop: at instants that are fixed in advance and independent of answers. Latency
//! counts from the instant at which a request was due. `benches/serve/latency` runs it.
//!
//! It writes frames itself, so that it needs less CPU time than the measured servers, and sends each request when it is
//! due (h2load sends those of ten milliseconds at once). It reads a [`Load`] as JSON from its standard input, and prints
//! a JSON object.

#![allow(clippy::unwrap_used, reason = "a load generator that cannot go on ends")]

use std::{
    io::{self, Error},
    time::Duration,
};

use rand::{SeedableRng, rngs::SmallRng};
use rand_distr::{Distribution, Exp1};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Deserialize;
use tollgate_limiter::time::Stopwatch;

mod connection;
mod request;
mod stats;

use connection::Connection;
use request::Request;
use stats::Stats;

/// The time after the last request for which answers are awaited.
const GRACE: Duration = Duration::from_secs(1);
/// A run ends early when so many seconds of requests wait for their answers: the rate is too high.
const BACKLOG_SECONDS: f64 = 1.0;
/// The longest sleep, so that a run without answers ends.
const SLEEP_MAX: Duration = Duration::from_millis(10);

/// What is sent.
#[derive(Deserialize)]
struct Load {
    /// Address and port.
    to: String,
    connections: usize,
    /// Requests a second on all connections; they arrive as a Poisson process.
    rate: f64,
    /// Seconds of requests that are sent and not measured.
    warmup: f64,
    /// Seconds of requests that are measured.
    seconds: f64,
    seed: u64,
    /// Sent in turn.
    requests: Vec<Content>,
}

#[derive(Deserialize)]
struct Content {
    path: String,
    /// A message with the prefix of gRPC, as hexadecimal digits. Empty: a `GET`.
    body: String,
}

/// The instants at which requests are due, relative to the start.
struct Arrivals {
    rng: SmallRng,
    rate: f64,
    last: f64,
    end: f64,
}

impl Iterator for Arrivals {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let gap: f64 = Exp1.sample(&mut self.rng);
        self.last += gap / self.rate;
        (self.last < self.end).then(|| Duration::from_secs_f64(self.last))
    }
}

fn main() -> io::Result<()> {
    let load: Load = serde_json::from_reader(io::stdin())?;
    #[cfg(target_os = "linux")]
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))?;
    let requests: Vec<Request> =
        load.requests.iter().map(|content| Request::new(&load.to, &content.path, &content.body)).collect();
    let mut connections =
        (0..load.connections).map(|_| Connection::open(&load.to)).collect::<io::Result<Vec<_>>>()?;
    let stats = run(&load, &requests, &mut connections)?;
    println!("{}", stats.json());
    Ok(())
}

fn run<'r>(load: &Load, requests: &'r [Request], connections: &mut [Connection<'r>]) -> io::Result<Stats> {
    let mut stats = Stats::new(Duration::from_secs_f64(load.warmup));
    let end = load.warmup + load.seconds;
    let rng = SmallRng::seed_from_u64(load.seed);
    let mut arrivals = Arrivals { rng, rate: load.rate, last: 0.0, end }.peekable();
    let backlog_max = (load.rate * BACKLOG_SECONDS) as usize;
    let give_up = Duration::from_secs_f64(end) + GRACE;
    let start = Stopwatch::start();
    let mut number = 0;
    loop {
        let now = start.elapsed();
        while let Some(due) = arrivals.next_if(|due| *due <= now) {
            stats.due(due);
            connections[number % load.connections].queue(due, &requests[number % requests.len()]);
            number += 1;
        }
        for connection in &mut *connections {
            connection.write(&start, &mut stats)?;
        }
        let backlog: usize = connections.iter().map(Connection::backlog).sum();
        let next = arrivals.peek();
        if backlog > backlog_max || give_up < now || next.is_none() && backlog == 0 {
            return Ok(stats);
        }
        let sleep = next.map_or(SLEEP_MAX, |due| due.saturating_sub(start.elapsed()).min(SLEEP_MAX));
        for ready in await_io(connections, sleep)? {
            connections[ready].read(&start, &mut stats)?;
        }
    }
}

/// Sleeps at most so long; returns the numbers of the connections that have something to read.
fn await_io(connections: &[Connection], sleep: Duration) -> io::Result<Vec<usize>> {
    let interest = |connection: &Connection| {
        if connection.has_output() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    };
    let mut polled: Vec<PollFd<'_>> =
        connections.iter().map(|connection| PollFd::new(connection, interest(connection))).collect();
    poll(&mut polled, Some(&Timespec::try_from(sleep).map_err(Error::other)?))?;
    let readable =
        |one: &PollFd<'_>| one.revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
    Ok(polled.iter().enumerate().filter(|(_, one)| readable(one)).map(|(number, _)| number).collect())
}
