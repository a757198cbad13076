//! What would be decided, and why.

use serde_json::{Value, json};

use crate::{
    admin::{RULES, admin, explained, good},
    harness::{Service, one, request, with_hits},
};

#[tokio::test]
async fn an_explanation_names_the_rule_its_place_and_why_others_were_not_chosen() {
    let service = Service::start(RULES).await;
    let told = explained(&service, "key=user=alice").await;
    assert_eq!(told["code"], "OK");
    let told = &told["descriptors"][0];
    assert_eq!(told["rule"]["path"], "shop.user_a*");
    assert!(told["rule"]["at"].as_str().unwrap().ends_with("rules.yaml:8:17"), "{told}");
    assert_eq!(told["limit"], "10 per minute, algorithm: token_bucket, burst: 20");
    let level = &told["levels"][0];
    assert_eq!(level["looked_up"], "user_alice");
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
    assert_eq!(told["counter"]["key"].as_str().unwrap().len(), 32);
    assert_eq!(told["counter"]["kind"], "token_bucket over 1m");
    assert_eq!((&told["counter"]["before"]["remaining"], &told["remaining"]), (&json!(20), &json!(19)));
}

#[tokio::test]
async fn an_explanation_says_why_there_is_no_limit() {
    let service = Service::start(RULES).await;
    for (key, why) in [
        ("user=root", "no limit: shop.user_root is unlimited"),
        ("colour=red", "no limit: nothing matches `colour_red`, entry 1 of the descriptor"),
        ("team=a,badge=b", "no limit: nothing matches `badge_b`, entry 2 of the descriptor"),
        ("team=a", "has no rate_limit; it has nested descriptors"),
    ] {
        let told = explained(&service, &format!("key={key}")).await;
        let told = &told["descriptors"][0];
        assert!(told["why"].as_str().unwrap().contains(why), "{told}");
        assert!(told["counter"].is_null() && told["code"] == "OK");
    }
    let told = explained(&service, "key=team=a,badge=b").await;
    assert_eq!(told["descriptors"][0]["levels"][1]["there"][0]["descriptor"], "member");
    let told = good(&service, "GET", "/explain?domain=other&key=a=b", "").await;
    assert_eq!(told["descriptors"][0]["why"], "no rules for this domain");
}

#[tokio::test]
async fn an_explanation_names_what_replaces_a_rule() {
    let service = Service::start(RULES).await;
    let told = explained(&service, "key=basic=x&key=plan=gold").await;
    let (basic, gold) = (&told["descriptors"][0], &told["descriptors"][1]);
    assert!(
        basic["why"].as_str().unwrap().starts_with("no limit: shop.basic is replaced by shop.plan_gold at ")
    );
    assert_eq!(basic["rule"]["replaced_by"], json!(["shop.plan_gold"]));
    assert!(basic["counter"].is_null() && gold["counter"].is_object());
}

#[tokio::test]
async fn an_explanation_of_a_refusal_tells_when_the_same_would_pass() {
    let service = Service::start(RULES).await;
    service.ask(with_hits(one("shop", "user", "bob"), 2)).await.unwrap();
    let told = explained(&service, "key=user=bob").await;
    assert_eq!((&told["code"], &told["refused_by"]), (&json!("OVER_LIMIT"), &json!(["shop.user"])));
    let verdict = &told["descriptors"][0]["verdict"];
    assert_eq!((&verdict["passes"], &verdict["retry_after_ms"]), (&json!(false), &json!(36_000)));
    let told = explained(&service, "key=user=bob&hits=3").await;
    assert_eq!(told["descriptors"][0]["verdict"]["never"], true);
    let told = explained(&service, "key=user=bob&refund=1").await;
    assert_eq!((&told["code"], &told["descriptors"][0]["remaining"]), (&json!("OK"), &json!(1)));
}

#[tokio::test]
async fn an_explanation_shows_a_shared_counter_a_shadow_rule_and_its_candidate() {
    let service = Service::start(RULES).await;
    let path = |value: &str| with_hits(one("shop", "path", value), 4);
    let told = explained(&service, "key=path=/api/a&hits=4").await;
    let told = &told["descriptors"][0];
    assert_eq!((&told["code"], &told["verdict"]["passes"]), (&json!("OK"), &json!(false)));
    assert_eq!(
        (&told["levels"][0]["matched"]["shared"], &told["rule"]["shadow_mode"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(
        (&told["candidate"]["limit"], &told["candidate"]["verdict"]["passes"]),
        (&json!("1 per 1h"), &json!(false))
    );
    assert!(service.ask(path("/api/b")).await.is_ok());
    let other = explained(&service, "key=path=/api/b").await;
    assert_eq!(other["descriptors"][0]["counter"]["key"], told["counter"]["key"]);
}

#[tokio::test]
async fn an_explanation_changes_nothing_and_tells_what_the_request_is_then_answered() {
    let service =
        Service::start(&format!("{RULES}\n").replace("domain: shop", "domain: shop\non_denied: charge_none"))
            .await;
    let body = r#"{"domain":"shop","descriptors":[
        {"entries":[{"key":"user","value":"alice"}],"hitsAddend":"7"},
        {"entries":[{"key":"path","value":"/api/x"}]},
        {"entries":[{"key":"team","value":"a"},{"key":"member","value":"b"}]},
        {"entries":[{"key":"user","value":"bob"}],"limit":{"requestsPerUnit":3,"unit":"HOUR"}}]}"#;
    for turn in 0..4 {
        let counters = admin(&service, "GET", "/store", "").await;
        let told = good(&service, "POST", "/explain", body).await;
        assert_eq!(good(&service, "POST", "/explain", body).await, told, "asked again, it is the same");
        assert_eq!(admin(&service, "GET", "/store", "").await, counters, "no counter has come");
        let (code, answer) = service.http("POST", "/json", body).await;
        assert_eq!(code, if turn == 0 { 200 } else { 429 }, "{answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(told["code"], answer["overallCode"]);
        for (told, status) in
            told["descriptors"].as_array().unwrap().iter().zip(answer["statuses"].as_array().unwrap())
        {
            assert_eq!(told["code"], status["code"], "{told}");
            assert_eq!(told["remaining"], *status.get("limitRemaining").unwrap_or(&json!(0)), "{told}");
        }
    }
}

#[tokio::test]
async fn what_cannot_be_explained_is_answered_with_what_is_wrong() {
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
async fn two_charges_to_one_counter_are_explained_one_after_the_other() {
    let service = Service::start(RULES).await;
    let told = explained(&service, "key=user=bob&key=user=bob&key=user=bob").await;
    let passes: Vec<_> = (0..3).map(|index| &told["descriptors"][index]["verdict"]["passes"]).collect();
    assert_eq!(passes, [&json!(true), &json!(true), &json!(false)]);
    assert_eq!(service.ask(request("shop", vec![])).await.unwrap_err().code(), tonic::Code::InvalidArgument);
}
