//! When a session is lost, and when it survives.

use std::time::Duration;

use futures_util::future::join_all;
use tollgate_cluster::{Departure, MemberId};
use tollgate_counter::time::Stopwatch;

use crate::{
    harness::{rounds, until},
    links::{
        proxy::Proxy,
        replica::{Event, Replica},
    },
};

#[tokio::test]
async fn killed_replica_is_dead_at_once() {
    let (one, two) = Replica::pair().await;
    let (id, since) = (two.id(), Stopwatch::start());
    two.kill().await;
    one.until(Event::Lost(id, Departure::Dead)).await;
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
    assert_eq!(one.links.stats().links_up(), 0);
}

#[tokio::test]
async fn replica_is_dead_when_another_answers_at_its_address() {
    let proxy = Proxy::start().await;
    let one = Replica::start(&[]).await;
    let two = Replica::start_behind(&proxy, &[&one.address()]).await;
    one.until_linked(&two).await;
    let three = Replica::start(&[]).await;
    let id = two.id();
    proxy.set_target(three.listen);
    two.kill().await;
    one.until(Event::Lost(id, Departure::Dead)).await;
    one.until_linked(&three).await;
}

#[tokio::test]
async fn closing_replica_sends_queued_batches_and_goodbye() {
    let (one, two) = Replica::pair().await;
    for number in 0..1_000_u32 {
        two.send(one.id(), number.to_string());
    }
    let since = Stopwatch::start();
    two.links.close(Duration::from_secs(10)).await;
    assert!(since.elapsed() < Duration::from_secs(5), "no peer delays the close");
    one.until(Event::Lost(two.id(), Departure::Dead)).await;
    assert_eq!(one.received_count(two.id()), 1_000);
    two.task.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_closing_together_under_load_end_in_time() {
    for _ in 0..rounds(4, 20) {
        let one = Replica::start(&[]).await;
        let two = Replica::start(&[&one.address()]).await;
        let three = Replica::start(&[&one.address(), &two.address()]).await;
        let all = [one, two, three];
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            all[from].until_linked(&all[to]).await;
            for _ in 0..200 {
                all[from].send(all[to].id(), vec![0; 10_000]);
            }
        }
        let since = Stopwatch::start();
        join_all(all.iter().map(|replica| replica.links.close(Duration::from_secs(10)))).await;
        assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
        for replica in all {
            replica.task.await.unwrap().unwrap();
        }
    }
}

#[tokio::test]
async fn close_ends_in_time_when_peer_is_stalled() {
    let ([to_one, to_two], _one, two) = Replica::pair_behind_proxies().await;
    to_one.stall();
    to_two.stall();
    let since = Stopwatch::start();
    two.links.close(Duration::from_millis(300)).await;
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
}

#[tokio::test]
async fn silent_replica_is_not_dead_and_loses_no_batch() {
    let ([to_one, to_two], one, two) = Replica::pair_behind_proxies().await;
    to_one.stall();
    to_two.stall();
    one.send(two.id(), "across the silence");
    // The link times out.
    until(async || (one.links.stats().links_up() == 0).then_some(())).await;
    assert_eq!(one.events(), [Event::Linked(two.id())]);
    to_one.resume();
    to_two.resume();
    two.until_received(one.id(), 1).await;
    assert_eq!(two.events(), [Event::Linked(one.id())], "it is the same session");
}

#[tokio::test]
async fn unresponsive_replica_does_not_delay_other_links() {
    let hole = Proxy::start().await;
    let one = Replica::start(&[]).await;
    let silent = Replica::start_behind(&hole, &[]).await;
    one.links.dial(&silent.address());
    one.until_linked(&silent).await;
    hole.stall();
    for _ in 0..20 {
        one.send(silent.id(), vec![0; 1024 * 1024]);
    }
    let two = Replica::start(&[&one.address()]).await;
    one.until_linked(&two).await;
    let since = Stopwatch::start();
    for number in 0..100 {
        one.send(two.id(), "to and fro");
        two.until_received(one.id(), number + 1).await;
    }
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    assert!(!one.events().contains(&Event::Lost(silent.id(), Departure::Dead)));
}

#[tokio::test]
async fn forgotten_replica_is_lost_on_both_sides_and_relinks() {
    let (one, two) = Replica::pair().await;
    one.links.forget(two.id());
    one.until(Event::Lost(two.id(), Departure::Forgotten)).await;
    let again = |of: MemberId| [Event::Linked(of), Event::Lost(of, Departure::Forgotten), Event::Linked(of)];
    until(async || (one.events() == again(two.id())).then_some(())).await;
    until(async || (two.events() == again(one.id())).then_some(())).await;
    one.send(two.id(), "anew");
    two.until_received(one.id(), 1).await;
}

#[tokio::test]
async fn idle_link_sends_about_five_heartbeats_per_second() {
    let (one, two) = Replica::pair().await;
    let (before, since) = (one.heard(two.id()), Stopwatch::start());
    until(async || (one.heard(two.id()) >= before + 10).then_some(())).await;
    let took = since.elapsed();
    assert!(took > Duration::from_millis(1_500) && took < Duration::from_secs(4), "{took:?}");
}
