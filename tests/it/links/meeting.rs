//! How processes find each other, and themselves.

use std::sync::atomic::Ordering::SeqCst;

use tollgate::cluster::{SeedFailures, SeedState};

use crate::{
    harness::until,
    links::{
        proxy::Proxy,
        replica::{Event, Replica},
    },
};

/// Waits until there is one link between the two, and both have met once.
async fn until_one_link(one: &Replica, two: &Replica) {
    one.until_linked(two).await;
    two.until_linked(one).await;
    until(async || (one.links.stats().links_up == 1 && two.links.stats().links_up == 1).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_that_dial_each_other_at_once_have_one_session() {
    for _ in 0..50 {
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
async fn three_that_know_one_seed_are_all_linked_once_they_are_told_of_each_other() {
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
async fn who_finds_itself_at_its_seed_leaves_it_alone_and_knows_that_nobody_else_is_there() {
    // Nobody is behind the second: it is dialled in every round.
    let (proxy, rounds) = (Proxy::start().await, Proxy::start().await);
    let seeds = [proxy.address.to_string(), rounds.address.to_string()];
    let one = Replica::start_changed(&seeds.each_ref().map(String::as_str), |_| ()).await;
    proxy.lead_to(one.listen);
    let ourselves = SeedState::NotFound(SeedFailures { own: 1, unreachable: 1, ..SeedFailures::default() });
    until(async || (one.links.seed_state() == ourselves).then_some(())).await;
    let (dialled, round) = (proxy.connections.load(SeqCst), rounds.connections.load(SeqCst));
    until(async || (round + 3 <= rounds.connections.load(SeqCst)).then_some(())).await;
    assert_eq!(proxy.connections.load(SeqCst), dialled);
    assert_eq!((one.events(), one.links.stats().links_up), (vec![], 0));
}

#[tokio::test]
async fn without_seeds_there_is_nobody_to_wait_for() {
    let one = Replica::start(&[]).await;
    until(async || (one.links.seed_state() == SeedState::NotFound(SeedFailures::default())).then_some(()))
        .await;
}

#[tokio::test]
async fn a_seed_is_in_vain_until_somebody_is_there() {
    let proxy = Proxy::start().await;
    let address = proxy.address;
    proxy.close();
    let refused = SeedState::NotFound(SeedFailures { refused: 1, unresolved: 1, ..SeedFailures::default() });
    let one = Replica::start(&[&address.to_string(), "no such host:1"]).await;
    until(async || (one.links.seed_state() == refused).then_some(())).await;
    let two = Replica::start_changed(&[], |settings| settings.listen = address).await;
    one.until_linked(&two).await;
    until(async || (one.links.seed_state() == SeedState::Found).then_some(())).await;
}

#[tokio::test]
async fn a_name_stands_for_all_its_addresses() {
    let one = Replica::start(&[]).await;
    let port = one.listen.port();
    let two = Replica::start(&[&format!("localhost:{port}")]).await;
    two.until_linked(&one).await;
}

#[tokio::test]
async fn dialling_an_address_again_and_again_is_dialling_it_once() {
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
