//! The explain page: the decision that a request would get, and its reason.

use serde_json::{Value, json};

use crate::{
    admin::{RULES, admin, explain_json, ok_json},
    harness::{Service, request, request_for, with_hits},
};

#[tokio::test]
async fn explanation_names_rule_location_and_rejected_candidates() {
    let service = Service::start(RULES).await;
    let explanation = explain_json(&service, "key=user=alice").await;
    assert_eq!(explanation["code"], "OK");
    let explanation = &explanation["descriptors"][0];
    assert_eq!(explanation["rule"]["path"], "shop.user_a*");
    assert!(explanation["rule"]["at"].as_str().unwrap().ends_with("rules.yaml:8:17"), "{explanation}");
    assert_eq!(explanation["limit"], "10 per minute, algorithm: token_bucket, burst: 20");
    let level = &explanation["levels"][0];
    assert_eq!(level["looked_up"], "user=alice");
    assert_eq!(
        (&level["matched"]["descriptor"], &level["matched"]["how"]),
        (&json!("user=a*"), &json!("by its pattern"))
    );
    let others: Vec<_> = level["others"]
        .as_array()
        .unwrap()
        .iter()
        .map(|other| (&other["descriptor"], &other["why"]))
        .collect();
    assert_eq!(
        others,
        [
            (&json!("user"), &json!("its key alone matches too, but a pattern takes precedence")),
            (&json!("user=al*"), &json!("its pattern matches too, but is declared later")),
        ]
    );
    assert_eq!(explanation["counter"]["key"].as_str().unwrap().len(), 32);
    assert_eq!(explanation["counter"]["kind"], "token_bucket over 1m");
    assert_eq!(
        (&explanation["counter"]["before"]["remaining"], &explanation["remaining"]),
        (&json!(20), &json!(19))
    );
}

#[tokio::test]
async fn explanation_says_why_no_limit_applies() {
    let service = Service::start(RULES).await;
    for (key, why) in [
        ("user=root", "no limit: shop.user_root is unlimited"),
        ("colour=red", "no limit: nothing matches `colour=red`, entry 1 of the descriptor"),
        ("team=a,badge=b", "no limit: nothing matches `badge=b`, entry 2 of the descriptor"),
        ("team=a", "has no rate_limit; it has nested descriptors"),
    ] {
        let explanation = explain_json(&service, &format!("key={key}")).await;
        let explanation = &explanation["descriptors"][0];
        assert!(explanation["why"].as_str().unwrap().contains(why), "{explanation}");
        assert!(explanation["counter"].is_null() && explanation["code"] == "OK");
    }
    let explanation = explain_json(&service, "key=team=a,badge=b").await;
    assert_eq!(explanation["descriptors"][0]["levels"][1]["there"][0]["descriptor"], "member");
    let explanation = ok_json(&service, "GET", "/explain?domain=other&key=a=b", "").await;
    assert_eq!(explanation["descriptors"][0]["why"], "no rules for this domain");
}

#[tokio::test]
async fn explanation_names_replacing_rule() {
    let service = Service::start(RULES).await;
    let explanation = explain_json(&service, "key=basic=x&key=plan=gold").await;
    let (basic, gold) = (&explanation["descriptors"][0], &explanation["descriptors"][1]);
    assert!(
        basic["why"]
            .as_str()
            .unwrap()
            .starts_with("no limit: basic (shop.basic) is replaced by gold (shop.plan_gold) at ")
    );
    assert_eq!(basic["rule"]["replaced_by"], json!(["shop.plan_gold"]));
    assert!(basic["counter"].is_null() && gold["counter"].is_object());
}

#[tokio::test]
async fn explanation_of_refusal_shows_retry_after() {
    let service = Service::start(RULES).await;
    service.call(with_hits(request_for("shop", "user", "bob"), 2)).await.unwrap();
    let explanation = explain_json(&service, "key=user=bob").await;
    assert_eq!(
        (&explanation["code"], &explanation["refused_by"]),
        (&json!("OVER_LIMIT"), &json!(["shop.user"]))
    );
    let verdict = &explanation["descriptors"][0]["verdict"];
    assert_eq!((&verdict["passes"], &verdict["retry_after_ms"]), (&json!(false), &json!(36_000)));
    let explanation = explain_json(&service, "key=user=bob&hits=3").await;
    assert_eq!(explanation["descriptors"][0]["verdict"]["never"], true);
    let explanation = explain_json(&service, "key=user=bob&refund=1").await;
    assert_eq!(
        (&explanation["code"], &explanation["descriptors"][0]["remaining"]),
        (&json!("OK"), &json!(1))
    );
}

#[tokio::test]
async fn explanation_shows_shared_counter_shadow_rule_and_candidate() {
    let service = Service::start(RULES).await;
    let path = |value: &str| with_hits(request_for("shop", "path", value), 4);
    let explanation = explain_json(&service, "key=path=/api/a&hits=4").await;
    let explanation = &explanation["descriptors"][0];
    assert_eq!((&explanation["code"], &explanation["verdict"]["passes"]), (&json!("OK"), &json!(false)));
    assert_eq!(
        (&explanation["levels"][0]["matched"]["shared"], &explanation["rule"]["shadow_mode"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(
        (&explanation["candidate"]["limit"], &explanation["candidate"]["verdict"]["passes"]),
        (&json!("1 per 1h"), &json!(false))
    );
    assert!(service.call(path("/api/b")).await.is_ok());
    let other = explain_json(&service, "key=path=/api/b").await;
    assert_eq!(other["descriptors"][0]["counter"]["key"], explanation["counter"]["key"]);
}

#[tokio::test]
async fn explanation_charges_nothing_and_matches_next_response() {
    let service =
        Service::start(&format!("{RULES}\n").replace("domain: shop", "domain: shop\non_denied: charge_none"))
            .await;
    let body = r#"{"domain":"shop","descriptors":[
        {"entries":[{"key":"user","value":"alice"}],"hitsAddend":"7"},
        {"entries":[{"key":"path","value":"/api/x"}]},
        {"entries":[{"key":"team","value":"a"},{"key":"member","value":"b"}]},
        {"entries":[{"key":"user","value":"bob"}],"limit":{"requestsPerUnit":3,"unit":"HOUR"}}]}"#;
    for turn in 0..4 {
        let counters = ok_json(&service, "GET", "/store", "").await["live"].clone();
        let explanation = ok_json(&service, "POST", "/explain", body).await;
        assert_eq!(
            ok_json(&service, "POST", "/explain", body).await,
            explanation,
            "repeated, the explanation is the same"
        );
        let counters_after = ok_json(&service, "GET", "/store", "").await["live"].clone();
        assert_eq!(counters_after, counters, "no counter was created");
        let (code, answer) = service.http("POST", "/json", body).await;
        assert_eq!(code, if turn == 0 { 200 } else { 429 }, "{answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(explanation["code"], answer["overallCode"]);
        for (explanation, status) in
            explanation["descriptors"].as_array().unwrap().iter().zip(answer["statuses"].as_array().unwrap())
        {
            assert_eq!(explanation["code"], status["code"], "{explanation}");
            assert_eq!(
                explanation["remaining"],
                *status.get("limitRemaining").unwrap_or(&json!(0)),
                "{explanation}"
            );
        }
    }
}

#[tokio::test]
async fn bad_explain_request_answers_400_with_reason() {
    let service = Service::start(RULES).await;
    for (query, wrong) in [
        ("", "domain"),
        ("?domain=shop", "no descriptors"),
        ("?domain=shop&key=user", "no `=`"),
        ("?domain=shop&key=a=b&hits=x", "not a number"),
        ("?domain=shop&keys=a=b", "`keys` is not one of"),
    ] {
        let (code, why) = admin(&service, "GET", &format!("/explain{query}"), "").await;
        assert_eq!(code, 400, "{why}");
        assert!(why.contains(wrong), "{why}");
    }
    assert_eq!(admin(&service, "POST", "/explain", "{").await.0, 400);
}

#[tokio::test]
async fn explanation_applies_charges_of_one_counter_in_order() {
    let service = Service::start(RULES).await;
    let explanation = explain_json(&service, "key=user=bob&key=user=bob&key=user=bob").await;
    let passes: Vec<_> =
        (0..3).map(|index| &explanation["descriptors"][index]["verdict"]["passes"]).collect();
    assert_eq!(passes, [&json!(true), &json!(true), &json!(false)]);
    assert_eq!(service.call(request("shop", vec![])).await.unwrap_err().code(), tonic::Code::InvalidArgument);
}

#[tokio::test]
async fn explanation_of_refusal_shows_its_body() {
    let service = Service::start(RULES).await;
    let passed = explain_json(&service, "key=plan=gold").await;
    assert_eq!(passed["descriptors"][0]["rule"]["denial_body"], "text/plain; charset=utf-8: {limit}");
    assert_eq!(passed["denial_body"], Value::Null);
    let refused = explain_json(&service, "key=plan=gold&hits=101").await;
    let body = json!({"content_type": "text/plain; charset=utf-8", "text": "100"});
    assert_eq!(refused["denial_body"], body);
    assert_eq!(explain_json(&service, "key=basic=x&hits=2").await["denial_body"], Value::Null);
}
