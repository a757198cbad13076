//! What is sent arrives, once and in order.

use std::time::Duration;

use prost::bytes::Bytes;
use tokio::time::{interval, timeout};

use crate::{
    harness::{PATIENCE, until},
    links::{
        proxy::Proxy,
        replica::{Event, Replica},
    },
};

#[tokio::test]
async fn two_processes_are_linked_and_batches_go_both_ways() {
    let one = Replica::start(&[]).await;
    let two = Replica::start(&[&one.address()]).await;
    one.until_linked(&two).await;
    two.until_linked(&one).await;
    for number in 0..100_u32 {
        one.send(two.id(), number.to_string());
        two.send(one.id(), format!("back {number}"));
    }
    one.until_received(two.id(), 100).await;
    two.until_received(one.id(), 100).await;
    assert_eq!(two.received(one.id()), (0..100).map(|number| number.to_string()).collect::<Vec<_>>());
    assert_eq!(one.received(two.id()), (0..100).map(|number| format!("back {number}")).collect::<Vec<_>>());
    assert_eq!(one.events(), [Event::Linked(two.id())]);
    assert_eq!(two.events(), [Event::Linked(one.id())]);
    let figures = one.links.stats();
    assert_eq!((figures.links_up, figures.batches_in, figures.batches_out), (1, 100, 100));
}

#[tokio::test]
async fn over_ipv6_it_is_the_same() {
    let one = Replica::start_changed(&[], |settings| settings.listen = "[::1]:0".parse().unwrap()).await;
    assert!(one.address().starts_with("[::1]:"), "{}", one.address());
    let seed = one.address();
    let two = Replica::start_changed(&[&seed], |settings| settings.listen = "[::1]:0".parse().unwrap()).await;
    one.until_linked(&two).await;
    one.send(two.id(), "six");
    two.until_received(one.id(), 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_batches_arrive_once_and_in_order_over_connections_that_break_all_the_time() {
    const BATCHES: u32 = 100_000;
    let (to_one, to_two) = (Proxy::start().await, Proxy::start().await);
    let one = Replica::start_behind(&to_one, &[]).await;
    let two = Replica::start_behind(&to_two, &[&one.address()]).await;
    one.until_linked(&two).await;
    two.until_linked(&one).await;
    let cutting = async {
        let mut beats = interval(Duration::from_millis(30));
        loop {
            beats.tick().await;
            to_one.cut();
            to_two.cut();
        }
    };
    let sending = async {
        for number in 0..BATCHES {
            one.send(two.id(), Bytes::copy_from_slice(&number.to_be_bytes()));
            two.send(one.id(), Bytes::copy_from_slice(&number.to_be_bytes()));
            if number % 1_000 == 0 {
                let sent = number as usize;
                // Some are always under way, and many cuts come between.
                until(async || (sent <= two.received_count(one.id()) + 5_000).then_some(())).await;
                until(async || (sent <= one.received_count(two.id()) + 5_000).then_some(())).await;
            }
        }
    };
    tokio::select! {
        () = cutting => {}
        done = timeout(3 * PATIENCE, sending) => done.unwrap(),
    }
    let expected: Vec<_> = (0..BATCHES).map(|number| Bytes::copy_from_slice(&number.to_be_bytes())).collect();
    for (from, to) in [(&one, &two), (&two, &one)] {
        to.until_received(from.id(), BATCHES as usize).await;
        assert!(to.received(from.id()) == expected, "each once, in order");
        assert_eq!(to.events(), [Event::Linked(from.id())], "and it was one session");
    }
    assert!(1 < one.links.stats().reconnects, "{:?}", one.links.stats());
}

#[tokio::test]
async fn a_batch_of_8_mib_arrives_whole_and_heartbeats_go_on_beside_it() {
    let one = Replica::start(&[]).await;
    let two = Replica::start(&[&one.address()]).await;
    one.until_linked(&two).await;
    let batch: Vec<u8> = (0..8 * 1024 * 1024_u32).map(|index| (index % 251) as u8).collect();
    one.send(two.id(), batch.clone());
    one.send(two.id(), "next");
    two.until_received(one.id(), 2).await;
    assert!(two.received(one.id()) == [Bytes::from(batch), Bytes::from("next")]);
    assert!(32 <= two.heard(one.id()), "it came in pieces");
}

#[tokio::test]
async fn while_nothing_is_acknowledged_a_bounded_number_of_bytes_is_taken() {
    const MIB: u64 = 1024 * 1024;
    let (to_one, to_two) = (Proxy::start().await, Proxy::start().await);
    let one = Replica::start_behind(&to_one, &[]).await;
    let two = Replica::start_behind(&to_two, &[&one.address()]).await;
    one.until_linked(&two).await;
    two.until_linked(&one).await;
    to_one.stall();
    to_two.stall();
    for _ in 0..640 {
        one.send(two.id(), vec![0; 64 * 1024]);
    }
    // The link is given up, and every other that is tried.
    until(async || (one.links.stats().links_up == 0).then_some(())).await;
    let taken = one.links.stats().bytes_out;
    assert!(taken <= 9 * MIB, "{taken}");
    to_one.flow();
    to_two.flow();
    two.until_received(one.id(), 640).await;
    assert_eq!(two.events(), [Event::Linked(one.id())]);
}
