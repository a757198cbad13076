//! Any message there is.

use std::{num::NonZeroU64, sync::Arc, time::Duration};

use jiff::civil::Weekday;
use proptest::{prelude::*, sample::select};

use crate::{
    algorithm::{
        Calendar, CalendarUnit, Classic, Decision, Excess, FixedWindow, LeakyQueue, Limit, Operation, Rate,
        Receipt, SlidingLog, SlidingWindow, Span, SteppedBucket, TokenBucket, Verdict, Window,
    },
    cluster::{MemberId, message::*},
    descriptor::{Key, Secret},
    store::{Check, Memory, OnFull, OnRefusal, Slot, SlotData},
    time::{SECOND, Timestamp},
};

/// When everything here is told.
pub(super) const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND + 123_456_789);

/// The largest burst. It is back within a hundred years, as in rules.
const BURST_MAX: u64 = 1_000;

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..300_u64, any::<u64>()]
}

fn at_least_1() -> impl Strategy<Value = NonZeroU64> {
    number().prop_map(|number| NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN))
}

fn time() -> impl Strategy<Value = Duration> {
    number().prop_map(Duration::from_nanos)
}

fn excess() -> impl Strategy<Value = Excess> {
    prop_oneof![Just(Excess::Refuse), Just(Excess::Count), number().prop_map(Excess::Overdraft)]
}

fn nanos() -> impl Strategy<Value = u64> {
    prop_oneof![Just(Span::NANOS_MIN), Just(60 * SECOND), Span::NANOS_MIN..=Span::NANOS_MAX]
}

fn span() -> impl Strategy<Value = Span> {
    nanos().prop_map(|nanos| Span::of_nanos(nanos).unwrap())
}

fn calendar() -> impl Strategy<Value = Calendar> {
    let unit = prop_oneof![
        Just(CalendarUnit::Day),
        select(vec![Weekday::Monday, Weekday::Saturday, Weekday::Sunday]).prop_map(CalendarUnit::Week),
        Just(CalendarUnit::Month),
        Just(CalendarUnit::Year),
    ];
    let zone = select(vec!["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"]);
    (unit, zone).prop_map(|(unit, zone)| Calendar::new(unit, zone).unwrap())
}

fn window() -> impl Strategy<Value = Window> {
    prop_oneof![span().prop_map(Window::Aligned), calendar().prop_map(Window::Calendar)]
}

fn interval() -> impl Strategy<Value = NonZeroU64> {
    nanos().prop_map(|nanos| NonZeroU64::new(nanos / BURST_MAX).unwrap())
}

fn pace() -> impl Strategy<Value = Rate> {
    (at_least_1(), interval()).prop_map(|(hits, interval)| Rate::new(hits, interval))
}

prop_compose! {
    fn log()(limit in number(), span in span(), grain in at_least_1(), excess in excess()) -> SlidingLog {
        SlidingLog { limit, span, grain, excess }
    }
}

prop_compose! {
    fn bucket()(pace in pace(), burst in 0..BURST_MAX, excess in excess()) -> TokenBucket {
        TokenBucket { rate: pace, burst, excess }
    }
}

prop_compose! {
    fn steps()(
        amount in at_least_1(),
        interval in interval(),
        burst in 0..BURST_MAX,
        excess in excess(),
    ) -> SteppedBucket {
        SteppedBucket { amount, interval, burst, excess }
    }
}

prop_compose! {
    fn queue()(
        pace in pace(),
        burst in prop::option::of(0..BURST_MAX),
        max_delay in prop::option::of(time()),
        patience in prop::option::of(time()),
    ) -> LeakyQueue {
        LeakyQueue { rate: pace, burst, max_delay, timeout: patience }
    }
}

pub(super) fn limit() -> BoxedStrategy<Limit> {
    let classic = (number(), window()).prop_map(|(limit, window)| Classic { limit, window });
    let fixed = (number(), window(), excess());
    let sliding = (number(), span(), excess());
    prop_oneof![
        classic.prop_map(Limit::Classic),
        fixed.prop_map(|(limit, window, excess)| Limit::FixedWindow(FixedWindow { limit, window, excess })),
        sliding.prop_map(|(limit, span, excess)| Limit::SlidingWindow(SlidingWindow { limit, span, excess })),
        log().prop_map(Limit::SubWindows),
        log().prop_map(Limit::SlidingLog),
        bucket().prop_map(Limit::TokenBucket),
        steps().prop_map(Limit::SteppedBucket),
        bucket().prop_map(Limit::LeakyBucket),
        queue().prop_map(Limit::LeakyQueue),
    ]
    .boxed()
}

/// A receipt that a limit has given, of whichever kind.
fn receipt() -> BoxedStrategy<Receipt> {
    let charge = (limit(), 1..10_u64)
        .prop_map(|(limit, hits)| limit.decide(&mut limit.fresh(), NOW, Operation::Charge(hits)).receipt);
    charge.prop_filter_map("it passed, and within its limit", |receipt| receipt).boxed()
}

fn member() -> impl Strategy<Value = MemberId> {
    any::<u64>().prop_map(MemberId::from_number)
}

fn members() -> impl Strategy<Value = Vec<MemberId>> {
    prop::collection::vec(member(), 0..4)
}

fn slot() -> impl Strategy<Value = Slot> {
    any::<u16>().prop_map(Slot)
}

fn key() -> impl Strategy<Value = Key> {
    (any::<u64>(), any::<u64>()).prop_map(|(high, low)| Key::from_halves(high, low))
}

fn version() -> impl Strategy<Value = Version> {
    (number(), number()).prop_map(|(epoch, seq)| Version { epoch, seq })
}

fn holder() -> impl Strategy<Value = Holder> {
    (number(), member()).prop_map(|(epoch, member)| Holder { epoch, member })
}

prop_compose! {
    fn record()(
        id in member(),
        address in "[a-z0-9.]{0,20}:[0-9]{1,5}",
        state in select(vec![State::Joining, State::Serving, State::Draining]),
        rules in any::<u64>(),
        changes in number(),
    ) -> Record {
        Record { id, address, state, rules, changes }
    }
}

/// What a slot holds after some charges and has still to absorb, or what has changed in it.
fn contents() -> BoxedStrategy<Arc<SlotData>> {
    let charges = || prop::collection::vec((any::<u64>(), limit(), 1..10_u64), 0..4);
    (charges(), charges(), any::<bool>())
        .prop_map(|(here, elsewhere, all)| {
            let elsewhere = held(&elsewhere).whole(Slot(0)).data;
            let memory = held(&here);
            memory.add(Slot(0), elsewhere.difference(&SlotData::default()), NOW);
            let copied = if all { memory.whole(Slot(0)) } else { memory.changes(Slot(0)) };
            Arc::new(copied.data.without_idle(NOW))
        })
        .boxed()
}

fn held(charges: &[(u64, Limit, u64)]) -> Memory {
    let memory = Memory::new(1 << 30, OnFull::Deny).with_slots(2).shared();
    memory.track_changes();
    memory.acquire(Slot(0), SlotData::default(), NOW);
    // A slot that is new has changed as a whole, until it is copied as a whole.
    memory.whole(Slot(0));
    for (low, limit, hits) in charges {
        let (key, ask) = (Key::from_halves(0, *low), Operation::Charge(*hits));
        memory
            .apply(&[Check { key, limit, operation: ask, on_refusal: OnRefusal::Keep }], NOW, |_| false)
            .unwrap();
    }
    memory
}

prop_compose! {
    fn slice()(
        key in key(),
        limit in limit(),
        lessee in member(),
        number in number(),
        left in number(),
        life in time(),
        charged in prop::option::of((at_least_1(), time())),
    ) -> Slice {
        let charged = charged.map(|(hits, age)| Charged { hits, age });
        Slice { key, limit, lessee, number, left, life, charged }
    }
}

prop_compose! {
    fn copy()(
        version in version(),
        contents in contents(),
        slices in prop::collection::vec(slice().boxed(), 0..3),
    ) -> Copy {
        Copy { version, contents, slices }
    }
}

prop_compose! {
    fn transfer()(
        from in member(),
        number in number(),
        slot in slot(),
        copy in copy().boxed(),
        (version, since) in (version(), number()),
        contents in prop::option::of(contents()),
    ) -> Transfer {
        Transfer { id: TransferId { from, number }, slot, copy, origin: Origin { version, since, contents } }
    }
}

prop_compose! {
    fn settlement()(
        lessee in member(),
        number in number(),
        (hits, left) in (number(), number()),
        age in time(),
        end in select(vec![End::Open, End::Closed]),
    ) -> Settlement {
        Settlement { lessee, number, hits, left, age, end }
    }
}

fn deed() -> BoxedStrategy<Deed> {
    prop_oneof![
        Just(Deed::Ask(Operation::Peek)),
        number().prop_map(|hits| Deed::Ask(Operation::Charge(hits))),
        number().prop_map(|hits| Deed::Ask(Operation::Refund(hits))),
        receipt().prop_map(Deed::Undo),
        contents().prop_map(Deed::Absorb),
        settlement().boxed().prop_map(Deed::Settle),
        number().prop_map(Deed::Set),
    ]
    .boxed()
}

prop_compose! {
    fn question()(key in key(), limit in limit(), deed in deed(), wish in number()) -> Arc<Question> {
        Arc::new(Question { key, limit, deed, wish })
    }
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        Just(Verdict::Pass),
        time().prop_map(Verdict::Delay),
        prop::option::of(time()).prop_map(|retry_after| Verdict::Refuse { retry_after }),
    ]
}

fn grant() -> impl Strategy<Value = Grant> {
    let slice = (number(), number(), time());
    prop_oneof![
        slice.prop_map(|(number, hits, life)| Grant::Slice { number, hits, life }),
        time().prop_map(|life| Grant::Nothing { life }),
    ]
}

prop_compose! {
    fn decided()(
        verdict in verdict(),
        remaining in number(),
        reset_after in time(),
        receipt in prop::option::of(receipt()),
        charged in number(),
        grant in prop::option::of(grant()),
    ) -> Reply {
        Reply::Decided { decision: Decision { verdict, remaining, reset_after, receipt }, charged, grant }
    }
}

fn reply() -> impl Strategy<Value = Reply> {
    prop_oneof![1 => Just(Reply::Unreachable), 8 => decided().boxed()]
}

prop_compose! {
    fn hello()(
        record in record(),
        hashing in prop::option::of((member(), any::<[u8; 16]>())),
        known in prop::collection::vec(record(), 0..3),
        held in prop::collection::vec((slot(), number(), version()), 0..4),
        holders in prop::collection::vec((slot(), holder()), 0..4),
    ) -> Hello {
        let hashed = |(founder, secret)| Hashing { founder, secret: Secret::from_bytes(secret) };
        Hello { record, hashing: hashing.map(hashed), known, held, holders }
    }
}

pub(super) fn message() -> BoxedStrategy<Message> {
    let holds = (slot(), number(), version());
    let backup = (slot(), copy().boxed(), prop::option::of(number()));
    let known = (slot(), prop::option::of(holder()), any::<bool>(), prop::option::of(copy().boxed()));
    let ask = (number(), question().boxed(), time(), any::<u8>());
    prop_oneof![
        hello().boxed().prop_map(|hello| Message::Hello(Box::new(hello))),
        record().prop_map(Message::Member),
        holds.prop_map(|(slot, epoch, origin)| Message::Holds { slot, epoch, origin }),
        transfer().boxed().prop_map(|transfer| Message::Transfer(Box::new(transfer))),
        (member(), number()).prop_map(|(from, number)| Message::Taken(TransferId { from, number })),
        backup.prop_map(|(slot, copy, after)| Message::Backup { slot, copy, after }),
        (slot(), version()).prop_map(|(slot, version)| Message::Backed { slot, version }),
        slot().prop_map(|slot| Message::Lacking { slot }),
        (slot(), version(), members()).prop_map(|(slot, best, dead)| Message::Query { slot, best, dead }),
        known.prop_map(|(slot, holder, alive, copy)| Message::Known { slot, holder, alive, copy }),
        (slot(), holder(), members()).prop_map(|(slot, holder, dead)| Message::Orphan { slot, holder, dead }),
        (slot(), copy().boxed()).prop_map(|(slot, copy)| Message::Better { slot, copy }),
        ask.prop_map(|(ticket, question, budget, hops)| Message::Ask { ticket, question, budget, hops }),
        (number(), reply()).prop_map(|(ticket, reply)| Message::Answer { ticket, reply }),
        key().prop_map(|key| Message::Recall { key }),
        key().prop_map(|key| Message::Revoke { key }),
    ]
    .boxed()
}
