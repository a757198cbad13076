//! Probes, JSON and the rules page.

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::harness::{Service, http, send};

const RULES: &str = "
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2}
";

const ALICE: &str = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"alice"}]}]}"#;

#[tokio::test]
async fn probes_of_serving_process_answer_200() {
    let service = Service::start(RULES).await;
    for probe in ["/livez", "/readyz", "/healthcheck"] {
        assert_eq!(service.http("GET", probe, "").await, (200, "OK".to_owned()));
    }
}

#[tokio::test]
async fn root_of_http_port_says_in_one_line_what_listens() {
    let service = Service::start(RULES).await;
    let (status, body) = service.http("GET", "/", "").await;
    assert_eq!((status, body.lines().count()), (200, 1), "{body}");
    assert!(body.starts_with("Tollgate over HTTP: POST /json and /v1/"), "{body}");
    assert_eq!(service.http("GET", "/nothing", "").await.0, 404);
}

#[tokio::test]
async fn json_answers_200_then_429_with_grpc_messages() {
    let service = Service::start(RULES).await;
    let (code, body) = service.http("POST", "/json", ALICE).await;
    assert_eq!(code, 200);
    let expected = json!({
        "overallCode": "OK",
        "statuses": [{
            "code": "OK",
            "currentLimit": {"requestsPerUnit": 2, "unit": "MINUTE"},
            "limitRemaining": 1,
            "durationUntilReset": "36s",
        }],
    });
    assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), expected);
    assert_eq!(service.http("POST", "/json", ALICE).await.0, 200);
    let (code, body) = service.http("POST", "/json", ALICE).await;
    assert_eq!(code, 429);
    assert!(body.contains(r#""overallCode":"OVER_LIMIT""#), "{body}");
}

/// The status of a request with these header lines.
async fn status(service: &Service, headers: &str, method: &str, path: &str, body: &str) -> u16 {
    send(service.addresses.http, headers, method, path, body).await.0
}

#[tokio::test]
async fn page_that_rebinds_its_name_charges_nothing() {
    let service = Service::start(RULES).await;
    let v1 = r#"{"requests": [{"domain": "shop", "descriptors": [{"entries": [{"key": "user", "value": "a"}]}]}]}"#;
    for (path, body) in [("/json", ALICE), ("/v1/check", v1)] {
        let of_page =
            "host: evil.example:8080\r\norigin: http://evil.example:8080\r\nsec-fetch-site: same-origin\r\n";
        assert_eq!(status(&service, of_page, "POST", path, body).await, 403, "{path}");
        for host in ["127.0.0.1:8080", "tollgate:8080", "tollgate.edge.svc:8080"] {
            assert_ne!(
                status(&service, &format!("host: {host}\r\n"), "POST", path, body).await,
                403,
                "{host}"
            );
        }
    }
    let named = Service::start_with(RULES, &[("http.hosts", "evil.example,tollgate.example")]).await;
    assert_eq!(status(&named, "host: Tollgate.example\r\n", "POST", "/json", ALICE).await, 200);
}

#[tokio::test]
async fn page_of_another_origin_cannot_charge_by_headers() {
    let check = [("check.domain", "shop"), ("check.descriptors", "user={user-agent}")];
    let service = Service::start_with(RULES, &check).await;
    let of_page = "host: tollgate:8080\r\nuser-agent: u\r\nsec-fetch-site: cross-site\r\n";
    for more in ["", "origin: http://evil.example\r\n", "x-forwarded-for: 10.0.0.1\r\n"] {
        assert_eq!(status(&service, &format!("{of_page}{more}"), "GET", "/check", "").await, 403, "{more}");
    }
    // What gateways forward of such a page, with a header of their own, and what a gateway passes on as it came.
    for more in ["x-real-ip: 10.0.0.1\r\n", "x-forwarded-uri: /\r\n"] {
        assert_eq!(status(&service, &format!("{of_page}{more}"), "GET", "/check", "").await, 200, "{more}");
    }
    assert_eq!(status(&service, "host: tollgate:8080\r\nuser-agent: v\r\n", "POST", "/check", "").await, 200);
}

/// A browser sends `Sec-Fetch-Site` only to `https` and `localhost`, and no `Origin` with an image.
#[tokio::test]
async fn image_of_page_without_tls_cannot_charge() {
    let check = [("check.domain", "shop"), ("check.descriptors", "user={user-agent};user={tenant|optional}")];
    let service = Service::start_with(RULES, &check).await;
    let image =
        "user-agent: u\r\naccept: image/png\r\naccept-language: en\r\nreferer: http://evil.example/\r\n";
    let of_image = format!("host: 10.0.0.5:8080\r\n{image}");
    for method in ["GET", "HEAD"] {
        assert_eq!(status(&service, &of_image, method, "/check", "").await, 403, "{method}");
    }
    let proxied = format!("{of_image}x-forwarded-for: 10.0.0.1\r\nvia: 1.1 proxy\r\n");
    assert_eq!(status(&service, &proxied, "GET", "/check", "").await, 403);
    // A page cannot set a header without asking the server first.
    for more in ["x-real-ip: 10.0.0.1\r\n", "tenant: a\r\n"] {
        assert_eq!(status(&service, &format!("{of_image}{more}"), "GET", "/check", "").await, 200, "{more}");
    }
    assert_eq!(
        status(&service, &of_image, "POST", "/check", "").await,
        429,
        "the refused requests cost nothing"
    );
}

#[tokio::test]
async fn check_serves_named_hosts_without_header_of_gateway() {
    let check = [
        ("check.domain", "shop"),
        ("check.descriptors", "user={user-agent}"),
        ("http.hosts", "shop.example"),
    ];
    let service = Service::start_with(RULES, &check).await;
    for (host, expected) in [("shop.example:8080", 200), ("evil.example", 403), ("10.0.0.5:8080", 403)] {
        let headers = format!("host: {host}\r\nuser-agent: v\r\n");
        assert_eq!(status(&service, &headers, "GET", "/check", "").await, expected, "{host}");
    }
    let of_page = "host: shop.example\r\nuser-agent: v\r\nsec-fetch-site: cross-site\r\n";
    assert_eq!(status(&service, of_page, "GET", "/check", "").await, 403);
}

/// The status of a request to `/check` with these bytes as header lines.
async fn checked(service: &Service, headers: &[u8]) -> u16 {
    let mut stream = TcpStream::connect(service.addresses.http).await.unwrap();
    let head = b"GET /check HTTP/1.1\r\nhost: tollgate:8080\r\nconnection: close\r\n";
    stream.write_all(&[head, headers, b"\r\n"].concat()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
}

#[tokio::test]
async fn check_counts_what_client_cannot_change() {
    let template = "user={x-user|optional};user={x-forwarded-uri|optional};user={x-forwarded-for|optional}";
    let service =
        Service::start_with(RULES, &[("check.domain", "shop"), ("check.descriptors", template)]).await;
    // Each value has a limit of two.
    for (same, other) in [
        (["x-user: bob\r\nx-user: eve", "x-user: bob, eve"], "x-user: eve\r\nx-user: bob"),
        (["x-forwarded-uri: /search?q=1", "x-forwarded-uri: /search?q=2"], "x-forwarded-uri: /find?q=1"),
        (
            [
                "x-forwarded-for: 1.1.1.1, 10.0.0.1",
                "x-forwarded-for: 2.2.2.2\r\nx-forwarded-for: 10.0.0.1:80",
            ],
            "x-forwarded-for: 1.1.1.1, 10.0.0.2",
        ),
    ] {
        // A GET without a header of a gateway is refused.
        let status = async |header: &str| {
            checked(&service, format!("x-real-ip: 10.0.0.9\r\n{header}\r\n").as_bytes()).await
        };
        for (header, expected) in
            [(same[0], 200), (same[1], 200), (same[0], 429), (same[1], 429), (other, 200)]
        {
            assert_eq!(status(header).await, expected, "{header}");
        }
    }
    for _ in 0..4 {
        let plain = b"x-real-ip: 10.0.0.1\r\n";
        assert_eq!(checked(&service, plain).await, 200, "a request without a descriptor passes");
    }
}

#[tokio::test]
async fn check_answers_400_to_bad_header_and_counts_it() {
    let check = [("check.domain", "shop"), ("check.descriptors", "user={x-user}")];
    let service = Service::start_with(RULES, &check).await;
    for (header, status) in
        [(&b"x-real-ip: 10.0.0.1\r\n"[..], 400), (b"x-user: \r\n", 400), (b"x-user: ann\r\n", 200)]
    {
        assert_eq!(checked(&service, header).await, status, "{}", header.escape_ascii());
    }
    let (status, body) = service.http("POST", "/check", "").await;
    assert_eq!((status, &*body), (400, "the header x-user is missing or empty\n"));
    let page = http(service.addresses.metrics, "GET", "/metrics", "").await.unwrap().1;
    assert!(page.contains("tollgate_forward_auth_bad_headers_total{reason=\"missing\"} 3\n"), "{page}");
}

#[tokio::test]
async fn json_accepts_proto_field_names() {
    let service = Service::start(RULES).await;
    let body =
        r#"{"domain":"shop","hits_addend":2,"descriptors":[{"entries":[{"key":"user","value":"x"}]}]}"#;
    let (code, body) = service.http("POST", "/json", body).await;
    assert_eq!(code, 200);
    assert!(!body.contains("limitRemaining"), "both hits are charged, and a zero is omitted: {body}");
}

#[tokio::test]
async fn json_resets_have_millisecond_precision() {
    let service = Service::start(RULES).await;
    service.advance(std::time::Duration::from_nanos(250_000_001));
    let (_, body) = service.http("POST", "/json", ALICE).await;
    assert!(body.contains(r#""durationUntilReset":"35.750s""#), "{body}");
}

#[tokio::test]
async fn bad_json_answers_400_with_reason() {
    let service = Service::start(RULES).await;
    let bad = [
        ("", "EOF"),
        ("{", "EOF"),
        ("[]", "invalid type"),
        (r#"{"domian": "shop"}"#, "domian"),
        (r#"{"domain": "shop"} x"#, "trailing"),
        (r#"{"domain": "shop"}"#, "no descriptors"),
        (r#"{"descriptors": [{}]}"#, "domain"),
        (r#"{"domain": "shop", "descriptors": [{"limit": {"requestsPerUnit": 1}}]}"#, "limit.unit"),
    ];
    for (body, wrong) in bad {
        let (code, answer) = service.http("POST", "/json", body).await;
        assert_eq!(code, 400, "{body}");
        assert!(answer.contains(wrong), "{body}: {answer}");
    }
}

#[tokio::test]
async fn rules_page_shows_generation_and_last_error() {
    let service = Service::start(RULES).await;
    let (code, body) = http(service.addresses.admin, "GET", "/rules", "").await.unwrap();
    let page: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, &page["generation"], &page["last_error"]), (200, &json!(1), &Value::Null));
    assert!(page["hash"].as_str().unwrap().len() >= 16);
}
