//! Batches arrive once and in order.

use std::time::Duration;

use prost::bytes::Bytes;
use tokio::time::{interval, timeout};

use crate::{
    harness::{TIMEOUT, rounds, until},
    links::replica::{Event, Replica},
};

#[tokio::test]
async fn linked_replicas_exchange_batches_in_both_directions() {
    let (one, two) = Replica::pair().await;
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
    assert_eq!((figures.links_up(), figures.batches_in.get(), figures.batches_out.get()), (1, 100, 100));
}

#[tokio::test]
async fn replicas_link_over_ipv6() {
    let one = Replica::start_modified(&[], |settings| settings.listen = "[::1]:0".parse().unwrap()).await;
    assert!(one.address().starts_with("[::1]:"), "{}", one.address());
    let seed = one.address();
    let two =
        Replica::start_modified(&[&seed], |settings| settings.listen = "[::1]:0".parse().unwrap()).await;
    one.until_linked(&two).await;
    one.send(two.id(), "six");
    two.until_received(one.id(), 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_arrive_once_and_in_order_over_breaking_connections() {
    let batches = rounds(20_000, 100_000) as u32;
    let ([to_one, to_two], one, two) = Replica::pair_behind_proxies().await;
    let cutting = async {
        let mut beats = interval(Duration::from_millis(30));
        loop {
            beats.tick().await;
            to_one.cut();
            to_two.cut();
            // Cuts faster than reconnects would let nothing through.
            let received = (one.received_count(two.id()), two.received_count(one.id()));
            until(async || (one.received_count(two.id()) > received.0).then_some(())).await;
            until(async || (two.received_count(one.id()) > received.1).then_some(())).await;
        }
    };
    let sending = async {
        let mut number: u32 = 0;
        // On a busy machine the first batches may all arrive between two cuts.
        while number < batches || one.links.stats().reconnects.get() <= 1 {
            one.send(two.id(), Bytes::copy_from_slice(&number.to_be_bytes()));
            two.send(one.id(), Bytes::copy_from_slice(&number.to_be_bytes()));
            if number.is_multiple_of(1_000) {
                let sent = number as usize;
                // Some batches are always in flight, and many cuts occur between them.
                until(async || (two.received_count(one.id()) + 5_000 >= sent).then_some(())).await;
                until(async || (one.received_count(two.id()) + 5_000 >= sent).then_some(())).await;
            }
            number += 1;
        }
        number
    };
    let sent = tokio::select! {
        () = cutting => unreachable!("the cuts go on"),
        sent = timeout(3 * TIMEOUT, sending) => sent.unwrap(),
    };
    let expected: Vec<_> = (0..sent).map(|number| Bytes::copy_from_slice(&number.to_be_bytes())).collect();
    for (from, to) in [(&one, &two), (&two, &one)] {
        to.until_received(from.id(), sent as usize).await;
        assert!(to.received(from.id()) == expected, "each batch once, in order");
        assert_eq!(to.events(), [Event::Linked(from.id())], "it was one session");
    }
    assert!(one.links.stats().reconnects.get() > 1, "{:?}", one.links.stats());
}

#[tokio::test]
async fn batch_of_8_mib_arrives_whole_between_heartbeats() {
    let (one, two) = Replica::pair().await;
    let batch: Vec<u8> = (0..8 * 1024 * 1024_u32).map(|index| (index % 251) as u8).collect();
    one.send(two.id(), batch.clone());
    one.send(two.id(), "next");
    two.until_received(one.id(), 2).await;
    assert!(two.received(one.id()) == [Bytes::from(batch), Bytes::from("next")]);
    assert!(two.heard(one.id()) >= 32, "the batch arrived in pieces");
}

#[tokio::test]
async fn unacknowledged_bytes_of_a_link_are_bounded() {
    const MIB: u64 = 1024 * 1024;
    let ([to_one, to_two], one, two) = Replica::pair_behind_proxies().await;
    to_one.stall();
    to_two.stall();
    for _ in 0..640 {
        one.send(two.id(), vec![0; 64 * 1024]);
    }
    // The link times out, and so does every later one.
    until(async || (one.links.stats().links_up() == 0).then_some(())).await;
    let taken = one.links.stats().bytes_out.get();
    assert!(taken <= 9 * MIB, "{taken}");
    to_one.resume();
    to_two.resume();
    two.until_received(one.id(), 640).await;
    assert_eq!(two.events(), [Event::Linked(one.id())]);
}
