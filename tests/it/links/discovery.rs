//! How replicas find each other, and how a replica recognises itself.

use std::sync::atomic::Ordering::SeqCst;

use tollgate_cluster::{SeedState, link::LinkFailure};

use crate::{
    harness::{rounds, until},
    links::{
        proxy::Proxy,
        replica::{Event, Replica},
    },
};

/// Waits until there is one link between the two replicas.
async fn until_one_link(one: &Replica, two: &Replica) {
    one.until_linked(two).await;
    two.until_linked(one).await;
    until(async || (one.links.stats().links_up() == 1 && two.links.stats().links_up() == 1).then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_dials_result_in_one_session() {
    for _ in 0..rounds(10, 50) {
        let (one, two) = (Replica::start(&[]).await, Replica::start(&[]).await);
        one.links.dial(&two.address());
        two.links.dial(&one.address());
        until_one_link(&one, &two).await;
        one.send(two.id(), "there");
        two.send(one.id(), "back");
        one.until_received(two.id(), 1).await;
        two.until_received(one.id(), 1).await;
        assert_eq!(one.events(), [Event::Linked(two.id())]);
        assert_eq!(two.events(), [Event::Linked(one.id())]);
        one.kill().await;
        two.kill().await;
    }
}

#[tokio::test]
async fn three_replicas_with_one_seed_are_fully_linked_after_dial() {
    let one = Replica::start(&[]).await;
    let two = Replica::start(&[&one.address()]).await;
    let three = Replica::start(&[&one.address()]).await;
    one.until_linked(&two).await;
    one.until_linked(&three).await;
    two.links.dial(&three.address());
    two.until_linked(&three).await;
    for (from, to) in [(&one, &two), (&two, &three), (&three, &one)] {
        from.send(to.id(), "hello");
        to.until_received(from.id(), 1).await;
    }
}

#[tokio::test]
async fn replica_that_is_its_own_seed_stops_dialling_it() {
    // No replica is behind the second seed, so every round dials it.
    let (proxy, rounds) = (Proxy::start().await, Proxy::start().await);
    let seeds = [proxy.address.to_string(), rounds.address.to_string()];
    let one = Replica::start_modified(&seeds.each_ref().map(String::as_str), |_| ()).await;
    proxy.set_target(one.listen);
    // Until the replica has recognised itself, every round dials the first seed too.
    until(async || {
        let (dialled, round) = (proxy.connections.load(SeqCst), rounds.connections.load(SeqCst));
        until(async || (rounds.connections.load(SeqCst) >= round + 3).then_some(())).await;
        (dialled > 0 && proxy.connections.load(SeqCst) == dialled).then_some(())
    })
    .await;
    assert_eq!(one.links.seed_state(), SeedState::NotFound);
    assert_eq!((one.events(), one.links.stats().links_up()), (vec![], 0));
}

#[tokio::test]
async fn replica_without_seeds_reports_seeds_exhausted() {
    let one = Replica::start(&[]).await;
    until(async || (one.links.seed_state() == SeedState::NotFound).then_some(())).await;
}

#[tokio::test]
async fn seed_without_replica_fails_until_one_listens() {
    let proxy = Proxy::start().await;
    let address = proxy.address;
    proxy.close();
    let one = Replica::start(&[&address.to_string(), "no such host:1"]).await;
    until(async || (one.links.seed_state() == SeedState::NotFound).then_some(())).await;
    let two = Replica::start_modified(&[], |settings| settings.listen = address).await;
    one.until_linked(&two).await;
    until(async || (one.links.seed_state() == SeedState::Found).then_some(())).await;
}

#[tokio::test]
async fn seed_that_completes_no_handshake_is_searched_further() {
    // The system accepts connections for it, and it never reads.
    let busy = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let one = Replica::start(&[&busy.local_addr().unwrap().to_string()]).await;
    until(async || (one.links.stats().failures(LinkFailure::Slow) >= 2).then_some(())).await;
    // The search ends after 10 s, which a busy machine may have taken.
    assert!([SeedState::Searching, SeedState::NotFound].contains(&one.links.seed_state()));
}

#[tokio::test]
async fn seed_name_resolves_to_all_its_addresses() {
    let one = Replica::start(&[]).await;
    let port = one.listen.port();
    let two = Replica::start(&[&format!("localhost:{port}")]).await;
    two.until_linked(&one).await;
}

#[tokio::test]
async fn repeated_dials_of_one_address_open_one_connection() {
    let proxy = Proxy::start().await;
    let (one, two) = (Replica::start(&[]).await, Replica::start_behind(&proxy, &[]).await);
    for _ in 0..100 {
        one.links.dial(&two.address());
    }
    one.until_linked(&two).await;
    for _ in 0..100 {
        one.links.dial(&two.address());
    }
    one.send(two.id(), "once");
    two.until_received(one.id(), 1).await;
    assert_eq!(proxy.connections.load(SeqCst), 1);
}

#[tokio::test]
async fn dials_beyond_their_bound_are_counted_and_later_ones_link() {
    let (one, two) = (Replica::start(&[]).await, Replica::start(&[]).await);
    let refused = || one.links.stats().commands_refused.get();
    // No task runs between these dials, to a port that refuses connections.
    (0..2_000).for_each(|number| one.links.dial(&format!("127.1.{}.{}:1", number / 250, number % 250)));
    assert_eq!(refused(), 2_000 - 1_024);
    until(async || {
        one.links.dial(&two.address());
        (one.links.stats().links_up() == 1).then_some(())
    })
    .await;
}
