//! What answers say, and calls that are refused.

use std::time::Duration;

use tollgate_wire::proto::tollgate::v1::{
    Answer, CheckRequest, Limit, LimitStatus, PeekRequest, RefundRequest, Request, answer::Verdict,
    limit::Unit,
};
use tonic::Code;

use crate::{
    api_v1::{
        check, client, descriptor, duration, each, reason, reason_of, remaining, request, verdicts, with_hits,
    },
    harness::Service,
};

const RULES: &str = "
domain: shop
on_denied: charge_none
descriptors:
  - {key: user, rate_limit: {name: per_user, unit: minute, requests_per_unit: 3, algorithm: fixed_window}}
  - {key: plan, value: free, rate_limit: {unit: hour, requests_per_unit: 5, algorithm: token_bucket}}
  - {key: plan, value: staff, rate_limit: {unlimited: true}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1, algorithm: fixed_window}}
  - {key: queue, rate_limit: {unit: second, requests_per_unit: 4, algorithm: leaky_queue, burst: 2}}
  - {key: banned, rate_limit: {unit: day, requests_per_unit: 0, algorithm: fixed_window}}
";

fn seconds(seconds: i64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds, nanos: 0 })
}

#[tokio::test]
async fn answer_has_every_field_of_allowed_request() {
    let service = Service::start(RULES).await;
    let mut asked = Request { id: "7f".into(), ..with_hits(request("user", "ann"), 2) };
    asked.descriptors.extend([descriptor("plan", "staff"), descriptor("plan", "free")]);
    asked.descriptors[2].hits = Some(1);
    let user = LimitStatus {
        rule: "per_user".into(),
        requests_per_unit: 3,
        unit: Unit::Minute.into(),
        remaining: 1,
        reset_after: seconds(36),
        ..LimitStatus::default()
    };
    let plan = LimitStatus {
        descriptor_index: 2,
        rule: "shop.plan_free".into(),
        requests_per_unit: 5,
        unit: Unit::Hour.into(),
        remaining: 4,
        reset_after: seconds(720),
        ..LimitStatus::default()
    };
    let expected = Answer {
        id: "7f".into(),
        verdict: Verdict::Allowed.into(),
        limits: vec![user, plan],
        ..Answer::default()
    };
    assert_eq!(check(&service, each(vec![asked])).await, [expected]);
}

#[tokio::test]
async fn answer_has_every_field_of_denied_request() {
    let service = Service::start(RULES).await;
    service.advance(Duration::from_nanos(1));
    let mut asked = with_hits(request("user", "ann"), 4);
    asked.descriptors[0].hits = Some(3);
    assert_eq!(verdicts(&check(&service, each(vec![asked])).await), [Verdict::Allowed]);
    let [answer] = &*check(&service, each(vec![request("user", "ann")])).await else { panic!("one answer") };
    let wait = Some(Duration::from_nanos(35_999_999_999));
    assert_eq!((answer.verdict(), duration(answer.retry_after)), (Verdict::Denied, wait));
    assert_eq!((&answer.delay, answer.degraded, &answer.error), (&None, false, &None));
    let [limit] = &*answer.limits else { panic!("one limit") };
    assert!(limit.refused && !limit.refused_in_shadow && !limit.refused_by_candidate && !limit.degraded);
    assert_eq!((limit.remaining, duration(limit.retry_after), duration(limit.reset_after)), (0, wait, wait));
}

#[tokio::test]
async fn denied_request_that_never_passes_says_so_and_why() {
    let service = Service::start(RULES).await;
    let asked = |mode| {
        let requests = vec![request("banned", "x"), with_hits(request("user", "ann"), 4)];
        CheckRequest { mode, requests }
    };
    let reason = |most| format!("larger than the limit: at most {most} can ever pass");
    for (mode, reasons) in [(0, [reason(0), reason(3)]), (1, [reason(0), reason(0)])] {
        for (answer, reason) in check(&service, asked(mode)).await.into_iter().zip(reasons) {
            assert_eq!((answer.verdict(), answer.retry_after), (Verdict::Denied, None));
            assert_eq!((answer.limits[0].retry_after, answer.limits[0].reset_after), (None, None));
            assert_eq!(answer.never_because, reason);
        }
    }
    let other = with_hits(request("user", "ann"), 3);
    assert_eq!(check(&service, each(vec![other])).await[0].never_because, "");
}

#[tokio::test]
async fn refusal_with_another_larger_limit_names_the_smaller_one() {
    let service = Service::start(RULES).await;
    let mut asked = with_hits(request("user", "ann"), 6);
    asked.descriptors.push(descriptor("plan", "free"));
    let [answer] = &*check(&service, each(vec![asked])).await else { panic!("one answer") };
    assert_eq!(answer.never_because, "larger than the limit: at most 3 can ever pass");
}

#[tokio::test]
async fn limit_in_shadow_mode_is_marked_and_denies_nothing() {
    let service = Service::start(RULES).await;
    for refused in [false, true] {
        let [answer] = &*check(&service, each(vec![request("shadow", "x")])).await else { panic!("one") };
        assert_eq!(answer.verdict(), Verdict::Allowed);
        assert_eq!((answer.limits[0].refused, answer.limits[0].refused_in_shadow), (false, refused));
    }
}

#[tokio::test]
async fn queue_answers_at_once_with_the_delay() {
    let service = Service::start(RULES).await;
    let asked = vec![request("queue", "x"); 4];
    let answers = check(&service, each(asked)).await;
    let delays: Vec<_> = answers.iter().map(|answer| duration(answer.delay)).collect();
    let [first, second] = [Some(Duration::from_millis(250)), Some(Duration::from_millis(500))];
    assert_eq!(delays, [None, first, second, None]);
    assert_eq!(answers[3].verdict(), Verdict::Denied);
}

#[tokio::test]
async fn timeout_of_a_call_does_not_bound_the_turn_in_a_queue() {
    let service = Service::start(RULES).await;
    let mut client = client(&service).await;
    let (call, first) = (each(vec![request("queue", "x")]), Duration::from_millis(250));
    client.check(call.clone()).await.unwrap();
    let mut hurried = tonic::Request::new(call);
    hurried.set_timeout(Duration::from_millis(200));
    let answers = client.check(hurried).await.unwrap().into_inner().answers;
    assert_eq!((verdicts(&answers), duration(answers[0].delay)), (vec![Verdict::Allowed], Some(first)));
}

#[tokio::test]
async fn request_without_rule_is_allowed_without_limits() {
    let service = Service::start(RULES).await;
    let unknown = Request { domain: "other".into(), ..request("user", "ann") };
    for answer in check(&service, each(vec![unknown, request("no", "rule"), request("plan", "staff")])).await
    {
        assert_eq!(answer, Answer { verdict: Verdict::Allowed.into(), ..Answer::default() });
    }
}

#[tokio::test]
async fn limit_in_request_replaces_rule() {
    let service = Service::start(RULES).await;
    let mut asked = with_hits(request("user", "ann"), 1000);
    asked.descriptors[0].limit = Some(Limit { requests_per_unit: 1000, unit: Unit::Week.into() });
    let answers = check(&service, each(vec![asked.clone(), asked])).await;
    assert_eq!(verdicts(&answers), [Verdict::Allowed, Verdict::Denied]);
    let limit = &answers[0].limits[0];
    assert_eq!((&*limit.rule, limit.requests_per_unit, limit.unit()), ("", 1000, Unit::Week));
}

#[tokio::test]
async fn peek_charges_nothing_and_refund_gives_back() {
    let service = Service::start(RULES).await;
    let mut client = client(&service).await;
    let user = || vec![request("user", "ann"), request("user", "bob")];
    let hits = vec![with_hits(request("user", "ann"), 2), with_hits(request("user", "bob"), 3)];
    let charged = client.check(each(hits)).await.unwrap().into_inner().answers;
    assert_eq!(remaining(&charged), [[1], [0]]);
    for _ in 0..2 {
        let peeked = client.peek(PeekRequest { requests: user() }).await.unwrap().into_inner().answers;
        assert_eq!(remaining(&peeked), [[1], [0]]);
        assert_eq!(verdicts(&peeked), [Verdict::Allowed, Verdict::Denied]);
    }
    let hits = vec![with_hits(request("user", "ann"), 9), request("user", "bob")];
    let refunded = client.refund(RefundRequest { requests: hits }).await.unwrap().into_inner().answers;
    assert_eq!(
        (remaining(&refunded), verdicts(&refunded)),
        (vec![vec![3], vec![1]], vec![Verdict::Allowed; 2])
    );
}

#[tokio::test]
async fn descriptor_with_zero_hits_is_not_charged() {
    let service = Service::start(RULES).await;
    let mut asked = request("user", "ann");
    asked.descriptors[0].hits = Some(0);
    let answers = check(&service, each(vec![asked.clone(), asked])).await;
    assert_eq!(remaining(&answers), [[3], [3]]);
}

#[tokio::test]
async fn bad_requests_of_a_call_leave_good_ones_alone() {
    let service = Service::start(RULES).await;
    let mut bad_unit = Request { id: "u".into(), ..request("user", "ann") };
    bad_unit.descriptors[0].limit = Some(Limit { requests_per_unit: 1, unit: 9 });
    let asked = vec![
        request("user", "ann"),
        Request { domain: String::new(), id: "d".into(), ..request("user", "ann") },
        bad_unit,
        Request { descriptors: Vec::new(), id: "n".into(), ..request("user", "ann") },
        request("user", "ann"),
    ];
    let answers = check(&service, each(asked)).await;
    assert_eq!((verdicts(&answers)[0], verdicts(&answers)[4]), (Verdict::Allowed, Verdict::Allowed));
    assert_eq!(answers[4].limits[0].remaining, 1, "nothing else is charged");
    let failed = answers[1..4].iter().map(|answer| {
        let error = answer.error.as_ref().unwrap();
        assert_eq!((answer.verdict(), error.code), (Verdict::Undecided, i32::from(Code::InvalidArgument)));
        (&*answer.id, reason(error))
    });
    let expected = [("d", "EMPTY_DOMAIN"), ("u", "UNKNOWN_UNIT"), ("n", "NO_DESCRIPTORS")];
    assert_eq!(failed.collect::<Vec<_>>(), expected.map(|(id, reason)| (id, reason.to_owned())));
    assert!(
        answers[2].error.as_ref().unwrap().message.contains("descriptors[0].limit.unit: 9 is not a unit")
    );
}

#[tokio::test]
async fn peek_with_hits_is_refused() {
    let service = Service::start(RULES).await;
    let mut hits_of_descriptor = request("user", "ann");
    hits_of_descriptor.descriptors[0].hits = Some(1);
    let requests = vec![with_hits(request("user", "ann"), 1), hits_of_descriptor];
    let answers = client(&service).await.peek(PeekRequest { requests }).await.unwrap().into_inner().answers;
    for answer in answers {
        assert_eq!(reason(&answer.error.unwrap()), "HITS_OF_PEEK");
    }
}

#[tokio::test]
async fn call_beyond_bounds_or_empty_is_refused_and_charges_nothing() {
    let service = Service::start_with(RULES, &[("api.max_requests", "2")]).await;
    let mut client = client(&service).await;
    let mut bad_mode = each(vec![request("user", "ann")]);
    bad_mode.mode = 5;
    for (call, reason, message) in [
        (each(vec![request("user", "ann"); 3]), "TOO_LARGE", "more than 2 requests (api.max_requests)"),
        (each(Vec::new()), "NO_REQUESTS", "no requests"),
        (bad_mode, "UNKNOWN_MODE", "mode: 5 is not a mode"),
    ] {
        let error = client.check(call).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().contains(message), "{error}");
        assert_eq!(reason_of(&error), reason);
    }
    let peeked = client.peek(PeekRequest { requests: vec![request("user", "ann")] }).await.unwrap();
    assert_eq!(remaining(&peeked.into_inner().answers), [[3]]);
}

#[tokio::test]
async fn request_beyond_bounds_is_refused_beside_others_that_are_decided() {
    let service = Service::start(RULES).await;
    let mut large = request("user", "ann");
    large.descriptors = vec![large.descriptors[0].clone(); 257];
    let mut wide = request("user", "ann");
    wide.descriptors[0].entries = vec![wide.descriptors[0].entries[0].clone(); 129];
    // Together more than the 8 KiB from which a call is counted before it is decided.
    let call = each(vec![request("user", "ann"), large.clone(), large, wide, request("user", "bob")]);
    let answers = client(&service).await.check(call).await.unwrap().into_inner().answers;
    let reasons = answers.iter().map(|answer| answer.error.as_ref().map(reason)).collect::<Vec<_>>();
    let too_large = Some("TOO_LARGE".to_owned());
    assert_eq!(reasons, [None, too_large.clone(), too_large.clone(), too_large, None]);
    assert_eq!([&answers[0], &answers[4]].map(|answer| answer.limits[0].remaining), [2, 2]);
}

#[tokio::test]
async fn call_with_too_many_descriptors_in_all_is_refused() {
    let service = Service::start(RULES).await;
    let mut wide = request("user", "ann");
    wide.descriptors = vec![descriptor("user", "ann"); 256];
    let answers = check(&service, each(vec![wide.clone(); 16])).await;
    assert_eq!(answers.len(), 16);
    let error = client(&service).await.check(each(vec![wide; 17])).await.unwrap_err();
    assert!(error.message().contains("more than 4096 descriptors in all"), "{error}");
}

#[tokio::test]
async fn call_before_rules_fails_as_a_whole() {
    let service = Service::start_unready("domain: [", &[]).await;
    let error = client(&service).await.check(each(vec![request("user", "ann"); 2])).await.unwrap_err();
    assert_eq!((error.code(), reason_of(&error)), (Code::Unavailable, "NO_RULES".to_owned()));
}
