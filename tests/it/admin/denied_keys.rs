//! The page of the keys that are denied most.

use serde_json::{Value, json};

use crate::harness::{Service, descriptor, http, request, request_for};

const RULES: &str = "
domain: shop
descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 10, algorithm: fixed_window}}]
";

#[tokio::test]
async fn top_page_shows_most_denied_keys() {
    let service = Service::start(RULES).await;
    for (user, hits) in [("a\"b", 13), ("bob", 11), ("cid", 10)] {
        for _ in 0..hits {
            service.call(request_for("shop", "user", user)).await.unwrap();
        }
    }
    let (code, body) = http(service.addresses.admin, "GET", "/top", "").await.unwrap();
    let expected = json!({"missed": 0, "quotas": [], "denied": [
        {"key": "shop user=a\"b", "count": 3, "error": 0},
        {"key": "shop user=bob", "count": 1, "error": 0},
    ]});
    assert_eq!((code, serde_json::from_str::<Value>(&body).unwrap()), (200, expected));
}

#[tokio::test]
async fn top_page_tracks_the_configured_number_of_keys() {
    const BAN: &str =
        "{domain: shop, descriptors: [{key: banned, rate_limit: {unit: hour, requests_per_unit: 0}}]}";
    let descriptors = ("api.max_descriptors", "1024");
    for (settings, tracked) in [(&[descriptors][..], 1_000), (&[descriptors, ("metrics.top_keys", "3")], 3)] {
        // One thread has one list.
        let service = Service::start_on_this_thread(BAN, settings).await;
        let deny = async |values: std::ops::Range<u32>| {
            let descriptors = values.map(|value| descriptor(&[("banned", &value.to_string())]));
            service.call(request("shop", descriptors.collect())).await.unwrap();
            let (_, body) = http(service.addresses.admin, "GET", "/top", "").await.unwrap();
            let first = &serde_json::from_str::<Value>(&body).unwrap()["denied"][0];
            (first["count"].clone(), first["error"].clone())
        };
        assert_eq!(deny(0..tracked).await, (json!(1), json!(0)), "{tracked}");
        // It takes the place and the count of another key.
        assert_eq!(deny(tracked..tracked + 1).await, (json!(2), json!(1)), "{tracked}");
    }
    let service = Service::start_with(BAN, &[("metrics.top_keys", "0")]).await;
    service.call(request_for("shop", "banned", "x")).await.unwrap();
    let (_, body) = http(service.addresses.admin, "GET", "/top", "").await.unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(&body).unwrap(),
        json!({"missed": 0, "denied": [], "quotas": []})
    );
}
