//! Flapping links leak no tasks and no sockets.

use std::fs;

use tokio::runtime::Handle;
use tollgate_cluster::Departure;

use crate::{
    harness::{rounds, until},
    links::replica::{Event, Replica},
};

/// The number of sockets from or to these ports. Other tests have sockets in the same process.
fn connections(ports: &[u16]) -> usize {
    let table = fs::read_to_string("/proc/self/net/tcp").unwrap();
    let port = |address: &str| u16::from_str_radix(address.rsplit(':').next().unwrap(), 16).unwrap();
    let rows = table.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
    // Sockets in TIME_WAIT belong to no process.
    let open = rows.filter(|row| row[3] != "06");
    open.filter(|row| ports.contains(&port(row[1])) || ports.contains(&port(row[2]))).count()
}

#[tokio::test]
async fn broken_connections_leak_no_task_and_no_socket() {
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let ([to_one, to_two], one, two) = Replica::pair_behind_proxies().await;
    let ports = [to_one.address.port(), to_two.address.port(), one.listen.port(), two.listen.port()];
    // The state of two replicas that have been linked for a moment.
    one.send(two.id(), "first");
    two.until_received(one.id(), 1).await;
    let quiet = tasks();
    let open = connections(&ports);
    for flap in 1..=rounds(100, 1_000) {
        to_one.cut();
        to_two.cut();
        one.send(two.id(), "again");
        two.until_received(one.id(), flap + 1).await;
    }
    until(async || (tasks() <= quiet && connections(&ports) <= open).then_some(())).await;
    assert_eq!(two.events(), [Event::Linked(one.id())]);
}

#[tokio::test]
async fn joining_and_dying_replicas_leak_nothing() {
    let tasks = || Handle::current().metrics().num_alive_tasks();
    let one = Replica::start(&[]).await;
    until(async || (one.links.seed_state() != tollgate_cluster::SeedState::Searching).then_some(())).await;
    let quiet = tasks();
    for _ in 0..rounds(10, 50) {
        let two = Replica::start(&[&one.address()]).await;
        one.until_linked(&two).await;
        let id = two.id();
        two.kill().await;
        one.until(Event::Lost(id, Departure::Dead)).await;
    }
    until(async || (tasks() <= quiet).then_some(())).await;
    assert_eq!(one.links.stats().links_up(), 0);
}
