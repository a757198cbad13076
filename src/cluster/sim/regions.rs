//! One limit over regions that are far apart: the figures of docs/dev/regions.md, which `benches/regions` prints.
//!
//! Each region has one replica, and a message between two regions takes 40 ms. Replicas are those of the product; shares by
//! demand are not part of the product, so a few lines here stand for them.

use std::{collections::BTreeMap, num::NonZeroU64, time::Duration};

use tollgate_limiter::{
    algorithm::{Excess, FixedWindow, Limit, Operation, Span, Window},
    descriptor::Key,
    remote::DecidedBy,
    resilience,
    rules::{ForwardPolicy, OnOwnerUnavailable},
    store::Slot,
    time::{SECOND, Timestamp},
};

use crate::cluster::{
    message::RemoteCheck,
    node::Ticket,
    sim::{
        calls::{OpenCall, Progress, TestCheck},
        keys,
        members::{MILLISECOND, Members, Replica},
    },
};

/// Hits in each window.
const LIMIT: u64 = 10_000;
const WINDOW: u64 = 10 * SECOND;
/// Windows of a run.
const WINDOWS: u64 = 3;
const FORWARD_BUDGET_MAX: Duration = Duration::from_millis(500);
/// How often shares by demand are adjusted, and the time of a message.
const ADJUSTED_EVERY: u64 = 2 * SECOND;
const ONE_WAY: u64 = 40 * MILLISECOND;

/// What callers ask for.
#[derive(Clone, Copy, Debug)]
struct Load {
    regions: usize,
    /// The timeout of callers.
    timeout: Duration,
    lease: bool,
    /// Calls in a second, in all regions together.
    calls: u64,
}

/// Answers to callers in the regions that do not own the key, and what passed in all regions.
#[derive(Debug, Default)]
struct Answers {
    passed: u64,
    latencies: Vec<Duration>,
    by_lease: usize,
    degraded: usize,
}

impl Answers {
    fn percent(&self, count: usize) -> f64 {
        100.0 * count as f64 / self.latencies.len() as f64
    }

    fn latency_ms(&mut self, percent: usize) -> f64 {
        self.latencies.sort_unstable();
        self.latencies[(self.latencies.len() - 1) * percent / 100].as_secs_f64() * 1e3
    }
}

fn limit() -> Limit {
    let window = Window::Aligned(Span::of_nanos(WINDOW).expect("it is not zero"));
    Limit::FixedWindow(FixedWindow { limit: LIMIT, window, excess: Excess::Refuse })
}

/// A key that the replica with number 0 owns.
fn key_of_first(members: &Members) -> Key {
    let Replica { node, .. } = &members.replicas[&0];
    let owned: Vec<Slot> = node.owned_slots().collect();
    let is_owned = |key: &Key| owned.contains(&Slot::of(*key, node.slots()));
    (0..).map(keys::key).find(is_owned).expect("the replica owns some slots")
}

/// Plays this load from the beginning of a window, evenly spread over the regions.
fn play(load: Load, windows: u64) -> Answers {
    let mut members = Members::settled(load.regions, load.regions);
    let on_owner_unavailable = OnOwnerUnavailable::LocalShare;
    let check = TestCheck {
        number: None,
        key: key_of_first(&members),
        limit: limit(),
        operation: Operation::Charge(1),
        policy: ForwardPolicy { on_owner_unavailable, lease: load.lease },
    };
    let mut answers = Answers::default();
    let mut open: BTreeMap<u64, (usize, Timestamp, OpenCall)> = BTreeMap::new();
    let to_next = WINDOW - members.now.as_nanos() % WINDOW;
    members.pass(Duration::from_nanos(to_next));
    let pause = Duration::from_nanos(SECOND / load.calls);
    let calls = load.calls * WINDOW / SECOND * windows;
    // The last calls are answered after the last one was made.
    for number in 0..calls + load.calls {
        if number < calls {
            let region = number as usize % load.regions;
            let mut call = OpenCall::new(vec![check.clone()], 0);
            let (_, Progress::Submitted(checks)) = call.advance() else {
                panic!("a check waits for its counter")
            };
            let now = members.now;
            let deadline = now.after(resilience::budget(Some(load.timeout), FORWARD_BUDGET_MAX));
            open.insert(number, (region, now, call));
            members.input(region, |node| {
                for (index, check) in (0..).zip(checks) {
                    let policy = check.policy;
                    let ticket = Ticket { call: number, check: index };
                    node.submit(ticket, RemoteCheck::of(check), policy, deadline, now);
                }
            });
        }
        members.pass(pause);
        for (region, ticket, outcome) in std::mem::take(&mut members.completed) {
            let now = members.now;
            let Some(Replica { node, share }) = members.replicas.get_mut(&region) else { continue };
            let Some((_, called_at, mut call)) = open.remove(&ticket.call) else { continue };
            let decided = call.complete(ticket.check, outcome, share, node.standing());
            let Some([decided]) = decided.as_deref() else { panic!("the call has one check") };
            answers.passed += u64::from(decided.outcome.decision.verdict.passes());
            if region != 0 {
                answers.latencies.push(now.since(called_at).saturating_sub(pause));
                answers.by_lease += usize::from(decided.decided_by == DecidedBy::Lease);
                answers.degraded += usize::from(decided.decided_by == DecidedBy::Degraded);
            }
        }
    }
    assert!(open.is_empty(), "{} calls are not answered", open.len());
    answers
}

/// What today's cluster does, as a table.
fn table_of_owners(windows: u64) -> String {
    let mut table =
        "| regions | timeout (ms) | leases | calls/s | p50 (ms) | p99 (ms) | by lease (%) | degraded (%) | \
                     passed of the limit (%) |\n"
            .to_owned();
    table += &format!("|{}\n", "---:|".repeat(9));
    for regions in [2, 3] {
        for millis in [20, 100, 500] {
            for lease in [false, true] {
                for calls in [600, 2_000] {
                    let load = Load { regions, timeout: Duration::from_millis(millis), lease, calls };
                    let mut answers = play(load, windows);
                    let lease = if lease { "on" } else { "off" };
                    table += &format!(
                        "| {regions} | {millis} | {lease} | {calls} | {:.0} | {:.0} | {:.0} | {:.0} | {:.0} |\n",
                        answers.latency_ms(50),
                        answers.latency_ms(99),
                        answers.percent(answers.by_lease),
                        answers.percent(answers.degraded),
                        100.0 * answers.passed as f64 / (LIMIT * windows) as f64,
                    );
                }
            }
        }
    }
    table
}

/// Divides `total` so that no region gets more than it asks for while another one with less lacks some (max-min). What
/// nobody asks for is divided equally.
fn max_min(total: u64, asked: &[u64]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..asked.len()).collect();
    order.sort_by_key(|region| asked[*region]);
    let (mut shares, mut left) = (vec![0; asked.len()], total);
    for (done, region) in order.iter().enumerate() {
        shares[*region] = asked[*region].min(left / (asked.len() - done) as u64);
        left -= shares[*region];
    }
    let each = NonZeroU64::new(asked.len() as u64).map_or(0, |regions| left / regions);
    shares.iter().map(|share| share + each).collect()
}

/// A region that decides by its share of the window alone.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    most: u64,
    used: u64,
    asked: u64,
}

/// What shares by demand admit in each window, and what one counter would: callers ask each region so often in a second.
/// The regions cannot reach each other from `cut_at` on. Without `adjusts` every region keeps an equal share.
fn play_shares(
    demand: impl Fn(u64, usize) -> u64,
    regions: usize,
    adjusts: bool,
    cut_at: u64,
) -> (Vec<u64>, Vec<u64>) {
    let (mut shares, mut weights) = (vec![Share::default(); regions], vec![1; regions]);
    let mut pending: Option<(u64, Vec<u64>)> = None;
    let (mut passed, mut ideal) = (Vec::new(), Vec::new());
    for at in (0..WINDOW * WINDOWS).step_by(MILLISECOND as usize) {
        if at % WINDOW == 0 {
            let total: u64 = weights.iter().sum();
            for (share, weight) in shares.iter_mut().zip(&weights) {
                *share = Share { most: LIMIT * weight / total, ..Share::default() };
            }
            pending = None;
            passed.push(0);
            ideal.push(0);
        }
        // Each region says what it has used and was asked. Before one gets more, others have confirmed that they have less.
        if adjusts && at % ADJUSTED_EVERY == 0 && at % WINDOW != 0 && at < cut_at {
            let asked: Vec<u64> = shares.iter().map(|share| share.asked).collect();
            let used: u64 = shares.iter().map(|share| share.used).sum();
            let left = max_min(LIMIT - used, &asked);
            weights = asked.iter().map(|asked| asked.max(&1)).copied().collect();
            weights = max_min(LIMIT, &weights);
            let wanted = shares.iter().zip(left).map(|(share, left)| share.used + left).collect();
            pending = Some((at, wanted));
            shares.iter_mut().for_each(|share| share.asked = 0);
        }
        if let Some((since, wanted)) = &pending {
            if at == since + 2 * ONE_WAY {
                for (share, wanted) in shares.iter_mut().zip(wanted) {
                    share.most = share.most.min((*wanted).max(share.used));
                }
            } else if at == since + 4 * ONE_WAY {
                let mut free = LIMIT - shares.iter().map(|share| share.most).sum::<u64>();
                for (share, wanted) in shares.iter_mut().zip(wanted) {
                    let more = wanted.saturating_sub(share.most).min(free);
                    (share.most, free) = (share.most + more, free - more);
                }
            }
        }
        for (region, share) in shares.iter_mut().enumerate() {
            // Demand in a second, in steps of a millisecond.
            let (second, step) = (at / SECOND, at / MILLISECOND % 1_000);
            let each = demand(second, region);
            let calls = each * (step + 1) / 1_000 - each * step / 1_000;
            let passes = calls.min(share.most - share.used.min(share.most));
            (share.used, share.asked) = (share.used + passes, share.asked + calls);
            *passed.last_mut().expect("a window has begun") += passes;
            *ideal.last_mut().expect("a window has begun") += calls;
        }
    }
    let ideal = ideal.into_iter().map(|asked: u64| asked.min(LIMIT)).collect();
    (passed, ideal)
}

/// What shares by demand give, as a table.
fn table_of_shares() -> String {
    let mut table =
        "| demand | regions | shares | needlessly refused (%) | the most that passed of the limit (%) |\n"
            .to_owned();
    table += &format!("|---|{}\n", "---:|".repeat(4));
    // Hits in a second of all regions: of the first one first, and after half of the time of the last one.
    let mixes: [(&str, [u64; 2]); 4] = [
        ("equal, 60 % of the limit", [300, 300]),
        ("90 : 10, 80 % of the limit", [720, 80]),
        ("90 : 10, twice the limit", [1_800, 200]),
        ("moves from one region to another, 80 % of the limit", [800, 0]),
    ];
    for (name, [first, others]) in mixes {
        for regions in [2, 3] {
            let moves = others == 0;
            let demand = |second: u64, region: usize| {
                let busy = if moves && second >= WINDOW * WINDOWS / SECOND / 2 { regions - 1 } else { 0 };
                if region == busy { first } else { others / (regions as u64 - 1) }
            };
            for (shares, adjusts, cut_at) in [
                ("equal", false, u64::MAX),
                ("by demand", true, u64::MAX),
                ("by demand, cut after 8 s", true, 8 * SECOND),
            ] {
                let (passed, ideal) = play_shares(demand, regions, adjusts, cut_at);
                let (sum, wanted) = (passed.iter().sum::<u64>(), ideal.iter().sum::<u64>());
                let most = passed.iter().max().expect("there are windows");
                let refused = 100.0 * wanted.saturating_sub(sum) as f64 / wanted as f64;
                let most = 100.0 * *most as f64 / LIMIT as f64;
                table += &format!("| {name} | {regions} | {shares} | {refused:.1} | {most:.0} |\n");
            }
        }
    }
    table
}

#[test]
#[expect(clippy::disallowed_methods, reason = "prints the figures of longer runs")]
fn regions_have_figures() {
    let windows = if std::env::var_os("SIMULATION_REGIONS").is_some() { WINDOWS } else { return };
    println!("{}\n{}", table_of_owners(windows), table_of_shares());
}

#[test]
fn owner_in_another_region_is_late_for_short_timeouts() {
    let load = |millis, lease| Load { regions: 2, timeout: Duration::from_millis(millis), lease, calls: 100 };
    let in_time = play(load(500, false), 1);
    assert_eq!((in_time.degraded, in_time.passed), (0, 1_000));
    let late = play(load(100, false), 1);
    assert_eq!(late.degraded, late.latencies.len());
    let leased = play(Load { calls: 2_000, ..load(500, true) }, 1);
    assert!(leased.by_lease > 0 && leased.passed <= LIMIT, "{leased:?}");
}

#[test]
fn shares_by_demand_never_admit_more_than_the_limit() {
    let demand = |second: u64, region: usize| if (second / 7) as usize % 3 == region { 1_500 } else { 400 };
    for cut_at in [u64::MAX, 5 * SECOND, 12 * SECOND] {
        let (passed, _) = play_shares(demand, 3, true, cut_at);
        assert!(passed.iter().all(|passed| *passed <= LIMIT), "{passed:?}");
    }
}

#[test]
fn max_min_gives_small_askers_what_they_ask_for() {
    assert_eq!(max_min(100, &[10, 200, 60]), [10, 45, 45]);
    assert_eq!(max_min(100, &[10, 20]), [45, 55]);
    assert_eq!(max_min(0, &[10, 20]), [0, 0]);
}
