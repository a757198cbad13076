//! Strategies that generate every kind of message.

use std::{
    num::{NonZeroU32, NonZeroU64},
    sync::Arc,
    time::Duration,
};

use proptest::{prelude::*, sample::select};
use tollgate_counter::{
    algorithm::{Decision, HitRate, Limit, Operation, QuotaTerms, Receipt, Verdict, laws::any_limit},
    descriptor::{Key, Secret},
    time::{SECOND, Timestamp},
};
use tollgate_store::{
    Check, CheckDecision, Checks, CounterOperation, Epoch, HOLD_TTL_DEFAULT, HoldId, HoldOutcome, HoldTerms,
    LimitOrigin, Memory, OnExpiry, OnFull, OnRefusal, OperationOutcome, OwnLimitChange, OwnLimitOutcome,
    OwnLimitRefusal, OwnLimitState, OwnTerms, SettleOutcome, Settled, Slot, SlotData, SlotOwnLimits,
    UnknownId,
    divider::{
        Assignment, Assignments, DividerReport, Dividers, SlotDivisions, SubscriberId, SubscriberReport,
        SubscriberUsage,
    },
};

use crate::{
    member::MemberId,
    message::{check::*, slot::*, *},
};

/// The instant at which messages are encoded.
pub(super) const NOW: Timestamp = Timestamp::from_nanos(1_790_000_000 * SECOND + 123_456_789);

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..300_u64, any::<u64>()]
}

fn at_least_1() -> impl Strategy<Value = NonZeroU64> {
    number().prop_map(|number| NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN))
}

fn time() -> impl Strategy<Value = Duration> {
    number().prop_map(Duration::from_nanos)
}

/// A receipt issued by a limit of any kind.
fn receipt() -> BoxedStrategy<Receipt> {
    let charge = (any_limit(), 1..10_u64)
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

fn epoch() -> impl Strategy<Value = Epoch> {
    number().prop_map(Epoch)
}

fn version() -> impl Strategy<Value = Version> {
    (epoch(), number()).prop_map(|(epoch, seq)| Version { epoch, seq })
}

fn owner() -> impl Strategy<Value = SlotOwner> {
    (epoch(), member()).prop_map(|(epoch, member)| SlotOwner { epoch, member })
}

prop_compose! {
    fn record()(
        id in member(),
        address in "[a-z0-9.]{0,20}:[0-9]{1,5}",
        state in select(vec![MemberState::Joining, MemberState::Serving, MemberState::Draining]),
        rules in any::<u64>(),
        changes in number(),
    ) -> MemberRecord {
        MemberRecord { id, address, state, rules, changes }
    }
}

/// The contents of a slot after some charges and with consumption to absorb, whole or changes only.
fn contents() -> BoxedStrategy<Arc<SlotData>> {
    let charges = || prop::collection::vec((any::<u64>(), any_limit(), 1..10_u64), 0..4);
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
    // A new slot counts as changed as a whole until it is first copied.
    memory.whole(Slot(0));
    for (low, limit, hits) in charges {
        let key = Key::from_halves(0, *low);
        let operation = Operation::Charge(*hits);
        memory
            .apply(
                &[Check { key, limit, operation, on_refusal: OnRefusal::Keep, origin: LimitOrigin::Rule }],
                NOW,
                |_| false,
            )
            .unwrap();
        let check = Check {
            key,
            limit,
            operation: Operation::Charge(*hits / 2),
            on_refusal: OnRefusal::TakeBack,
            origin: LimitOrigin::Rule,
        };
        let terms = HoldTerms::new(HoldId::random(), HOLD_TTL_DEFAULT, OnExpiry::Release).unwrap();
        let refused = |decisions: &[CheckDecision]| !decisions[0].verdict.passes();
        memory.reserve(&Checks::from_slice(&[check]), &terms, NOW, refused).unwrap().unwrap();
    }
    memory
}

prop_compose! {
    fn grant()(
        key in key(),
        limit in any_limit(),
        borrower in member(),
        number in number(),
        left in number(),
        ttl in time(),
        charged in prop::option::of((at_least_1(), time())),
    ) -> LeaseGrant {
        let charged = charged.map(|(hits, age)| ChargedHits { hits, age });
        LeaseGrant { key, limit, borrower, number, left, ttl, charged }
    }
}

prop_compose! {
    fn copy()(
        version in version(),
        contents in contents(),
        leases in prop::collection::vec(grant().boxed(), 0..3),
        divisions in divisions(),
    ) -> VersionedSlot {
        VersionedSlot { version, contents, grants: SlotGrants { leases, divisions } }
    }
}

fn usage() -> impl Strategy<Value = SubscriberUsage> {
    (0..1_000_u64, 0..1_000_u64, number()).prop_map(|(allowed, denied, allowed_before)| SubscriberUsage {
        allowed,
        denied,
        allowed_before,
    })
}

prop_compose! {
    fn subscriber()(replica in number(), stream in number(), bucket: u32) -> SubscriberId {
        SubscriberId { replica, stream, bucket }
    }
}

fn quota_terms() -> impl Strategy<Value = QuotaTerms> {
    (1..1_000_u32, number())
        .prop_map(|(weight, floor)| QuotaTerms { weight: NonZeroU32::new(weight).unwrap(), floor })
}

fn report() -> impl Strategy<Value = DividerReport> {
    prop_oneof![
        usage().prop_map(DividerReport::Usage),
        usage().prop_map(DividerReport::Resumed),
        Just(DividerReport::Limit),
        Just(DividerReport::End),
        number().prop_map(DividerReport::Counted),
    ]
}

/// What reports of any clients come to.
fn divisions() -> impl Strategy<Value = SlotDivisions> {
    let report = (0..3_u64, any_limit(), subscriber(), quota_terms(), report(), 0..20_u64);
    prop::collection::vec(report, 0..6).prop_map(|reports| {
        let memory = Arc::new(held(&[]));
        let dividers = Dividers::new(memory);
        for (low, limit, id, terms, report, second) in reports {
            let report = SubscriberReport { key: Key::from_halves(0, low), limit, id, terms, report };
            dividers.report(&report, NOW.plus(second * SECOND));
        }
        dividers.divisions_of(Slot(0), NOW)
    })
}

fn assignments() -> impl Strategy<Value = Assignments> {
    let share = (number(), number()).prop_map(|(per_second, burst)| HitRate { per_second, burst });
    let assignment = prop_oneof![
        share.prop_map(Assignment::Share),
        number().prop_map(Assignment::Slice),
        number().prop_map(Assignment::Renewal),
        Just(Assignment::Deny),
    ];
    prop::collection::vec((subscriber(), assignment), 0..4)
}

prop_compose! {
    fn hand_off()(
        from in member(),
        number in number(),
        slot in slot(),
        copy in copy().boxed(),
        (version, since) in (version(), epoch()),
        contents in prop::option::of(contents()),
    ) -> HandOff {
        HandOff { id: HandOffId { from, number }, slot, copy, origin: RecoveryOrigin { version, since, contents } }
    }
}

prop_compose! {
    fn settlement()(
        borrower in member(),
        number in number(),
        (hits, left) in (number(), number()),
        age in time(),
        state in select(vec![LeaseState::Open, LeaseState::Closed]),
    ) -> Settlement {
        Settlement { borrower, number, hits, left, age, state }
    }
}

fn unknown_id() -> impl Strategy<Value = UnknownId> {
    prop_oneof![Just(UnknownId::Remember), Just(UnknownId::Forget)]
}

fn hold_id() -> impl Strategy<Value = HoldId> {
    prop::collection::vec(any::<u8>(), 0..=64).prop_map(|bytes| HoldId::new(&bytes).unwrap())
}

prop_compose! {
    fn settled()(
        outcome in select(vec![
            SettleOutcome::Open, SettleOutcome::Charged, SettleOutcome::Released, SettleOutcome::Unknown,
        ]),
        reserved in number(),
        uncharged in number(),
        remaining in number(),
        reset_after in time(),
    ) -> Settled {
        Settled { outcome, reserved, uncharged, remaining, reset_after }
    }
}

fn hold_outcome() -> impl Strategy<Value = HoldOutcome> {
    prop_oneof![
        Just(HoldOutcome::Decided),
        Just(HoldOutcome::Exhausted),
        Just(HoldOutcome::Ended),
        settled().prop_map(Box::new).prop_map(HoldOutcome::Settled),
        own_limit_outcome().prop_map(Box::new).prop_map(HoldOutcome::OwnLimit),
        slot_own_limits().prop_map(Box::new).prop_map(HoldOutcome::OwnLimits),
    ]
}

prop_compose! {
    fn own_terms()(limit in any_limit(), requests_per_unit in number()) -> OwnTerms {
        OwnTerms { limit, requests_per_unit }
    }
}

prop_compose! {
    fn own_limit_change()(
        terms in prop::option::of(own_terms()),
        expires_after in prop::option::of(time()),
        record in prop::collection::vec(any::<u8>(), 0..20),
        replaces in prop::option::of(number()),
    ) -> OwnLimitChange {
        OwnLimitChange { terms, expires_after, record: record.into(), replaces }
    }
}

prop_compose! {
    fn own_limit_outcome()(
        refusal in prop::option::of(prop::sample::select(vec![
            OwnLimitRefusal::OtherVersion,
            OwnLimitRefusal::NoMemory,
            OwnLimitRefusal::NotBackedUp,
        ])),
        state in prop::option::of(own_limit_state()),
    ) -> OwnLimitOutcome {
        OwnLimitOutcome { refusal, state }
    }
}

prop_compose! {
    fn own_limit_state()(change in own_limit_change(), version in number()) -> OwnLimitState {
        let OwnLimitChange { terms, expires_after, record, replaces: _ } = change;
        OwnLimitState { terms, version, expires_after, record }
    }
}

prop_compose! {
    fn slot_own_limits()(
        limits in prop::collection::vec((key(), own_limit_state()), 0..3),
        has_more: bool,
    ) -> SlotOwnLimits {
        SlotOwnLimits { limits: limits.into(), has_more }
    }
}

fn operation() -> BoxedStrategy<RemoteOperation> {
    prop_oneof![
        8 => counter_operation().prop_map(RemoteOperation::Counter),
        1 => counter_operation().prop_map(RemoteOperation::CounterByRequest),
        1 => contents().prop_map(RemoteOperation::Absorb),
        1 => settlement().boxed().prop_map(RemoteOperation::Settle),
        1 => (subscriber(), quota_terms(), report())
            .prop_map(|(id, terms, report)| RemoteOperation::Divide(id, terms, report)),
    ]
    .boxed()
}

fn counter_operation() -> BoxedStrategy<CounterOperation> {
    prop_oneof![
        Just(CounterOperation::Decide(Operation::Peek)),
        number().prop_map(|hits| CounterOperation::Decide(Operation::Charge(hits))),
        number().prop_map(|hits| CounterOperation::Decide(Operation::Refund(hits))),
        receipt().prop_map(CounterOperation::Undo),
        number().prop_map(CounterOperation::Set),
        (hold_id(), number()).prop_map(|(id, hits)| {
            let terms = HoldTerms::new(id, HOLD_TTL_DEFAULT, OnExpiry::Charge).unwrap();
            CounterOperation::Reserve { terms: Box::new(terms.with_attempt(hits)), hits }
        }),
        (hold_id(), number(), unknown_id()).prop_map(|(id, actual, unknown)| CounterOperation::Settle {
            id,
            actual,
            unknown
        }),
        (hold_id(), number()).prop_map(|(id, attempt)| CounterOperation::Withdraw { id, attempt }),
        own_limit_change().prop_map(Box::new).prop_map(CounterOperation::SetOwnLimit),
        prop::option::of(key()).prop_map(CounterOperation::ListOwnLimits),
    ]
    .boxed()
}

prop_compose! {
    fn remote_check()(key in key(), limit in any_limit(), operation in operation(), lease_hits in number()) -> Arc<RemoteCheck> {
        Arc::new(RemoteCheck { key, limit, operation, lease_hits })
    }
}

fn verdict() -> impl Strategy<Value = Verdict> {
    prop_oneof![
        Just(Verdict::Pass),
        time().prop_map(Verdict::Delay),
        prop::option::of(time()).prop_map(|retry_after| Verdict::Refuse { retry_after }),
    ]
}

fn lease_reply() -> impl Strategy<Value = LeaseReply> {
    let grant = (number(), number(), time());
    prop_oneof![
        grant.prop_map(|(number, hits, ttl)| LeaseReply::Granted { number, hits, ttl }),
        time().prop_map(|ttl| LeaseReply::Refused { ttl }),
    ]
}

prop_compose! {
    fn decided()(
        verdict in verdict(),
        remaining in number(),
        reset_after in time(),
        receipt in prop::option::of(receipt()),
        charged in number(),
        hold in hold_outcome(),
        own in prop::option::of(own_terms().prop_map(Box::new)),
        lease in prop::option::of(lease_reply().prop_map(Box::new)),
    ) -> CheckReply {
        let decision = Decision { verdict, remaining, reset_after, receipt };
        CheckReply::Decided { outcome: OperationOutcome { decision, charged, hold, own }, lease }
    }
}

fn reply() -> impl Strategy<Value = CheckReply> {
    prop_oneof![
        1 => Just(CheckReply::Unreachable),
        8 => decided().boxed(),
    ]
}

prop_compose! {
    fn hello()(
        record in record(),
        hash_secret in prop::option::of((member(), any::<[u8; 16]>())),
        known in prop::collection::vec(record(), 0..3),
        owned in prop::collection::vec((slot(), epoch(), version()), 0..4),
        owners in prop::collection::vec((slot(), owner()), 0..4),
    ) -> Hello {
        let hashed = |(founder, secret)| HashSecret { founder, secret: Secret::from_bytes(secret) };
        Hello { record, hash_secret: hash_secret.map(hashed), known, owned, owners }
    }
}

pub(super) fn message() -> BoxedStrategy<Message> {
    let owns = (slot(), epoch(), version());
    let backup = (slot(), copy().boxed(), prop::option::of(number()));
    let known = (slot(), prop::option::of(owner()), any::<bool>(), prop::option::of(copy().boxed()));
    let forward = (number(), remote_check().boxed(), time(), any::<u8>());
    prop_oneof![
        hello().boxed().prop_map(|hello| Message::Hello(Box::new(hello))),
        record().prop_map(Message::Member),
        owns.prop_map(|(slot, epoch, origin)| Message::Owns { slot, epoch, origin }),
        hand_off().boxed().prop_map(|hand_off| Message::HandOff(Box::new(hand_off))),
        (member(), number()).prop_map(|(from, number)| Message::HandOffAck(HandOffId { from, number })),
        backup.prop_map(|(slot, copy, after)| Message::Backup { slot, copy, after }),
        (slot(), version()).prop_map(|(slot, version)| Message::BackupAck { slot, version }),
        slot().prop_map(|slot| Message::BackupBaseMissing { slot }),
        (slot(), version()).prop_map(|(slot, version)| Message::BackupRefused { slot, version }),
        assignments().prop_map(Message::Assigned),
        (slot(), version()).prop_map(|(slot, best)| Message::RecoveryQuery { slot, best }),
        known.prop_map(|(slot, owner, alive, copy)| Message::RecoveryReply { slot, owner, alive, copy }),
        (slot(), owner()).prop_map(|(slot, owner)| Message::Orphan { slot, owner }),
        members().prop_map(|members| Message::Dead { members }),
        ("[0-9.]{0,9}", time())
            .prop_map(|(program, age)| Message::Status { program, clock: NOW.before(age) }),
        (slot(), copy().boxed()).prop_map(|(slot, copy)| Message::NewerCopy { slot, copy }),
        forward.prop_map(|(ticket, check, budget, hops)| Message::Forward { ticket, check, budget, hops }),
        (number(), reply()).prop_map(|(ticket, reply)| Message::Reply { ticket, reply }),
        key().prop_map(|key| Message::Recall { key }),
        key().prop_map(|key| Message::Revoke { key }),
    ]
    .boxed()
}
