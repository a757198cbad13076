//! `Reset` with and without the admin token.

use std::{fs, sync::Arc};

use tokio::{sync::Notify, task::JoinSet};
use tollgate_counter::time::Stopwatch;
use tollgate_wire::proto::tollgate::v1::{Descriptor, Limit, ResetCounter, ResetRequest, limit::Unit};
use tonic::{Code, Request};

use crate::{
    api_v1::{check, client, descriptor, each, reason_of, remaining, request, with_hits},
    harness::Service,
    metrics::{page, value},
};

const RULES: &str = "
domain: shop
descriptors:
  - {key: user, rate_limit: {name: per_user, unit: day, requests_per_unit: 3, algorithm: fixed_window}}
  - {key: staff, rate_limit: {unlimited: true}}
";

fn reset(descriptors: Vec<Descriptor>, token: Option<&str>) -> Request<ResetRequest> {
    let mut request = Request::new(ResetRequest { domain: "shop".into(), descriptors });
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    request
}

#[tokio::test]
async fn reset_with_token_empties_counters() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, "secret\n").unwrap();
    let service = Service::start_with(RULES, &[("admin.token_file", file.to_str().unwrap())]).await;
    check(&service, each(vec![with_hits(request("user", "ann"), 2)])).await;
    let both = vec![descriptor("user", "ann"), descriptor("user", "bob")];
    let mut client = client(&service).await;
    for token in [None, Some("wrong"), Some("")] {
        let error = client.reset(reset(both.clone(), token)).await.unwrap_err();
        assert_eq!((error.code(), reason_of(&error)), (Code::Unauthenticated, "WRONG_TOKEN".to_owned()));
    }
    let counters = client.reset(reset(both, Some("secret"))).await.unwrap().into_inner().counters;
    let counter = |before| ResetCounter { rule: "per_user".into(), remaining_before: before, remaining: 3 };
    assert_eq!(counters, [counter(1), counter(3)]);
    assert_eq!(remaining(&check(&service, each(vec![request("user", "ann")])).await), [[2]]);

    let mut limited = descriptor("user", "ann");
    limited.limit = Some(Limit { requests_per_unit: 1, unit: Unit::Day.into() });
    let ann = descriptor("user", "ann");
    for (bad, code, reason) in [
        (vec![ann.clone(), limited], Code::InvalidArgument, "LIMIT_OR_HITS"),
        (vec![], Code::InvalidArgument, "NO_DESCRIPTORS"),
        (vec![ann.clone(), descriptor("staff", "x")], Code::NotFound, "UNLIMITED"),
        (vec![ann, descriptor("no", "rule")], Code::NotFound, "NO_RULE"),
    ] {
        let error = client.reset(reset(bad, Some("secret"))).await.unwrap_err();
        assert_eq!((error.code(), reason_of(&error)), (code, reason.to_owned()), "{error}");
    }
    assert_eq!(
        remaining(&check(&service, each(vec![request("user", "ann")])).await),
        [[1]],
        "nothing was reset"
    );
    fs::remove_file(&file).unwrap();
    let error = client.reset(reset(vec![descriptor("user", "ann")], Some("secret"))).await.unwrap_err();
    assert_eq!((error.code(), reason_of(&error)), (Code::Unavailable, "TOKEN_UNUSABLE".to_owned()));
}

#[tokio::test]
async fn guesses_of_the_token_are_counted_and_slowed_down() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, "secret\n").unwrap();
    let service = Service::start_with(RULES, &[("admin.token_file", file.to_str().unwrap())]).await;
    let client = client(&service).await;
    let begun = Stopwatch::start();
    let mut guesses = JoinSet::new();
    for number in 0..400 {
        let mut client = client.clone();
        let call = reset(vec![descriptor("user", "ann")], Some(&format!("guess{number}")));
        guesses.spawn(async move { reason_of(&client.reset(call).await.unwrap_err()) });
    }
    let answers = guesses.join_all().await;
    let compared = answers.iter().filter(|reason| *reason == "WRONG_TOKEN").count();
    let seconds = begun.elapsed().as_secs();
    assert!(answers.iter().all(|reason| ["WRONG_TOKEN", "TOO_MANY_TOKENS"].contains(&reason.as_str())));
    assert!(seconds >= 1 && compared as u64 <= 16 * (seconds + 1), "{compared} guesses in {seconds} s");
    let refused = value(&page(&service).await, r#"tollgate_unanswered_requests_total{reason="wrong_token"}"#);
    assert_eq!(refused, 400.0);
    client.clone().reset(reset(vec![descriptor("user", "ann")], Some("secret"))).await.unwrap();
}

#[tokio::test]
async fn right_token_does_not_wait_behind_guesses() {
    const GUESSERS: usize = 64;
    let token = "a token of 24 characters".replace(' ', "-");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    fs::write(&file, &token).unwrap();
    let service = Service::start_with(RULES, &[("admin.token_file", file.to_str().unwrap())]).await;
    let guessed = Arc::new(Notify::new());
    let mut guessers = JoinSet::new();
    for number in 0..GUESSERS {
        let (mut client, guessed) = (client(&service).await, guessed.clone());
        guessers.spawn(async move {
            loop {
                let call = reset(vec![descriptor("user", "ann")], Some(&format!("guess{number}")));
                if reason_of(&client.reset(call).await.unwrap_err()) == "WRONG_TOKEN" {
                    guessed.notify_one();
                }
            }
        });
    }
    // From here on, four times as many guesses as there are places wait for one.
    guessed.notified().await;
    let mut client = client(&service).await;
    for _ in 0..20 {
        client.reset(reset(vec![descriptor("user", "ann")], Some(&token))).await.unwrap();
    }
    fs::write(&file, "another token that is long".replace(' ', "-")).unwrap();
    let error = client.reset(reset(vec![descriptor("user", "ann")], Some(&token))).await.unwrap_err();
    assert!(["WRONG_TOKEN", "TOO_MANY_TOKENS"].contains(&reason_of(&error).as_str()), "{error}");
    assert_eq!(guessers.len(), GUESSERS);
}

#[tokio::test]
async fn reset_without_token_file_is_forbidden() {
    let service = Service::start(RULES).await;
    let mut client = client(&service).await;
    let error = client.reset(reset(vec![descriptor("user", "ann")], Some("x"))).await.unwrap_err();
    assert_eq!((error.code(), reason_of(&error)), (Code::PermissionDenied, "NO_TOKEN_SET".to_owned()));
}
