//! Tests of what streams may take of memory, places and time.

use std::{sync::atomic::Ordering, time::Duration};

use prost::Message as _;

use super::{RULES, SETTINGS, Told, World, reports, told, usage};
use tollgate_wire::proto::envoy::service::rate_limit_quota::v3::RateLimitQuotaUsageReports;

use crate::{settings::QuotaSettings, stream::QuotaStream};

#[test]
fn caller_takes_its_share_of_memory_and_leaves_others_theirs() {
    let world = World::new();
    let many = |stream: usize| {
        let usages = (0..100).map(|number| usage(&[("rate", &format!("{stream}.{number}"))], 1, 0));
        reports(usages.collect())
    };
    let fill = |caller: &[u8]| {
        let mut streams = Vec::new();
        while let Ok(mut stream) = world.open_as(caller) {
            stream.receive(&many(streams.len())).unwrap();
            streams.push(stream);
        }
        streams
    };
    let bytes = || world.service.memory_bytes();
    let first = fill(b"first");
    let half = SETTINGS.memory as usize / 2;
    let of_first = bytes();
    assert!(of_first <= half && of_first > half - 8_192, "{of_first}");
    assert!(world.service.stats.too_many.get() > 0 && world.service.stats.refused_streams.get() == 1);
    let second = fill(b"second");
    assert!(bytes() > half + half / 5, "{}", bytes());
    // What has ended is free again once no assignment is in force.
    drop(first);
    assert!(world.open_as(b"third").is_ok() && bytes() > of_first * 7 / 10, "{}", bytes());
    world.advance(18);
    assert!(bytes() < half / 2, "{}", bytes());
    drop(second);
    world.advance(18);
    assert_eq!((bytes(), world.service.dividers.len()), (0, 0));
}

#[test]
fn domain_and_ids_count_as_memory() {
    let world = World::new();
    let long = "x".repeat(SETTINGS.memory as usize);
    let of =
        |domain: &str| RateLimitQuotaUsageReports { domain: domain.to_owned(), bucket_quota_usages: vec![] };
    let mut stream = world.open().unwrap();
    let refused = stream.receive(&of(&long).encode_to_vec()).unwrap_err();
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    let before = world.service.memory_bytes();
    stream.receive(&of("shop").encode_to_vec()).unwrap();
    stream.receive(&reports(vec![usage(&[("free", &"y".repeat(90))], 1, 0)])).unwrap();
    let more = world.service.memory_bytes() - before;
    assert!((2_048 + 90..2_200).contains(&more), "{more}");
}

#[test]
fn stream_keeps_no_room_for_forgotten_buckets_and_long_ids() {
    const BUCKETS: usize = 1_000;
    let world = World::with(QuotaSettings { memory: 1 << 30, ..SETTINGS });
    let mut stream = world.open().unwrap();
    let all = (0..BUCKETS).map(|number| usage(&[("free", &number.to_string())], 0, 0)).collect();
    let message = reports(all);
    for _ in 0..12 {
        stream.receive(&message).unwrap();
        told(&mut stream);
    }
    stream.receive(&reports(vec![usage(&[("free", &"y".repeat(90))], 1, 0)])).unwrap();
    assert_eq!((world.service.stats.buckets.load(Ordering::Relaxed), stream.numbers.len()), (1, 1));
    assert!(stream.numbers.capacity() <= BUCKETS / 2, "{}", stream.numbers.capacity());
    assert_eq!(stream.id.capacity(), 0);
}

#[test]
fn one_caller_leaves_places_of_a_limit_to_others() {
    let world = World::with(QuotaSettings { memory: 1 << 30, ..SETTINGS });
    let zones = |stream: usize| {
        let usages = (0..500).map(|number| usage(&[("zone", &format!("{stream}.{number}"))], 1, 0));
        reports(usages.collect())
    };
    let mut each = Vec::new();
    let served = |caller: &[u8], each: &mut Vec<QuotaStream>| {
        let before = world.service.refused_buckets();
        for number in 0..8 {
            let mut stream = world.open_as(caller).unwrap();
            stream.receive(&zones(number)).unwrap();
            each.push(stream);
        }
        4_000 - (world.service.refused_buckets() - before)
    };
    assert_eq!([b"a", b"b", b"c"].map(|caller| served(caller, &mut each)), [2_048, 512, 384]);
}

#[test]
fn work_of_a_report_does_not_grow_with_other_buckets() {
    const BUCKETS: usize = 3_400;
    let world = World::with(QuotaSettings { memory: 1 << 30, ..SETTINGS });
    // More callers than one, of whom each gets its share.
    let mut streams: Vec<_> = (0..20_u8).map(|caller| world.open_as(&[caller]).unwrap()).collect();
    let all = |hits: u64| -> Vec<Vec<u8>> {
        let of = |stream: usize| {
            let each = (stream..BUCKETS).step_by(20);
            reports(each.map(|number| usage(&[("zone", &number.to_string())], hits, hits)).collect())
        };
        (0..20).map(of).collect()
    };
    for round in 0..2 {
        let visits_before = world.service.dividers.stats().visited.get();
        let reports_before = world.service.stats.reports.get();
        // The demand of each changes with each report.
        for (stream, message) in streams.iter_mut().zip(all(1 + round % 2)) {
            stream.receive(&message).unwrap();
            world.clock.set(world.clock.now().after(Duration::from_millis(250)));
            world.service.turn();
        }
        let reports = world.service.stats.reports.get() - reports_before;
        let visits = world.service.dividers.stats().visited.get() - visits_before;
        assert_eq!((reports, world.service.refused_buckets()), (BUCKETS as u64, 0));
        // A division for each of the 20 messages and after each pause.
        assert!(visits <= 2 * 20 * BUCKETS as u64, "{visits}");
        let answered: usize = streams.iter_mut().map(|stream| told(stream).len()).sum();
        assert!(answered >= BUCKETS, "{answered}");
    }
}

/// Each bucket that comes back visits those of its caller that have ended. It takes memory anew, which bounds how many
/// come back in the time for which that is not given back.
#[test]
fn buckets_that_come_back_again_and_again_are_bounded_by_memory() {
    let world = World::new();
    let zones = (0..100).map(|number| {
        let mut usage = usage(&[("zone", &number.to_string())], 1, 0);
        usage.time_elapsed.get_or_insert_default().seconds = 5;
        usage
    });
    let message = reports(zones.collect());
    let taken = || world.service.stats.reports.get() - world.service.refused_buckets();
    for _ in 0..2 {
        let before = taken();
        for _ in 0..20 {
            // At first with room for the stream itself.
            if let Ok(mut stream) = world.open() {
                stream.receive(&message).unwrap();
            }
        }
        let most = SETTINGS.memory / 2 / 1_536;
        let now = taken() - before;
        assert!(100 < now && now <= most, "{now} of {most}");
        world.advance(18);
    }
}

#[test]
fn messages_and_new_rules_are_taken_in_parts() {
    const BUCKETS: usize = 500;
    let world = World::with(QuotaSettings { memory: 1 << 30, ..SETTINGS });
    let mut stream = world.open().unwrap();
    let message = reports((0..BUCKETS).map(|number| usage(&[("free", &number.to_string())], 1, 0)).collect());
    stream.begin(&message).unwrap();
    let parts = std::iter::successors(Some(0), |from| stream.take(&message, *from)).count();
    assert_eq!(parts, BUCKETS.div_ceil(64));
    assert_eq!(told(&mut stream).len(), BUCKETS);
    world.load(&RULES.replace("unlimited: true", "unit: minute, requests_per_unit: 0"));
    stream.outbox.announce_rules();
    let parts = std::iter::from_fn(|| stream.apply_rules().then_some(())).count();
    assert!(parts >= BUCKETS / 64, "{parts}");
    let denied = told(&mut stream).into_iter().filter(|(_, told)| *told == Told::Deny).count();
    assert_eq!(denied, BUCKETS);
}
