//! Answers of a server of rules that are not whole, too large, or in another form.

use crate::{
    harness::until,
    remote_rules::{
        Follower, document, rules,
        server::{Reply, RulesServer},
    },
};

#[tokio::test]
async fn bad_answers_keep_the_rules_and_name_the_url() {
    let server = RulesServer::start(document("one", 1)).await;
    let follower =
        Follower::start(&server.url(), &[("rules.url.max_bytes", "1KiB"), ("rules.url.timeout", "100ms")]);
    let huge = "#".repeat(1025);
    let length = |length: usize| format!("content-length: {length}\r\n");
    for (reply, expected) in [
        (Reply::status("404 Not Found", ""), "cannot be fetched: the server answered 404 Not Found"),
        (Reply::status("500 Internal Server Error", ""), "the server answered 500"),
        (Reply::status("206 Partial Content", ""), "the server answered 206"),
        (
            Reply::status("302 Found", "location: /other.yaml\r\n"),
            "/other.yaml; rules.url.redirects allows 0",
        ),
        (Reply::ok(&length(7), "<html/>"), ":1:1: expected a mapping"),
        (
            Reply::ok(&length(30), "domain: shop\ndescriptors: [{"),
            "end of file before message length reached",
        ),
        (Reply::ok("", &rules(2)), "the answer has no length"),
        (Reply::ok(&(length(4) + "content-encoding: gzip\r\n"), "\x1f\x0b89"), "Content-Encoding \"gzip\""),
        (Reply::ok(&length(1025), &huge), "larger than rules.url.max_bytes, 1024 bytes"),
        (Reply::ok("transfer-encoding: chunked\r\n", &format!("401\r\n{huge}\r\n0\r\n\r\n")), "larger than"),
        (Reply::Stalled(String::new()), "no whole answer within 100ms"),
        (Reply::Stalled("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ndom".into()), "no whole answer within"),
        (Reply::Bytes("SSH-2.0-server\r\n".into()), "cannot be fetched: "),
    ] {
        follower.until_limit(1).await;
        server.answer(reply);
        let problem = follower.until_problem(expected).await;
        assert!(problem.starts_with(&format!("{}:1:1: ", server.url())), "{problem}");
        assert_eq!(follower.limit(), Some(1), "{expected}");
        server.answer(document("one", 1));
    }
    follower.until_limit(1).await;
    server.answer(Reply::Document { etag: "bad", text: rules(2) + "descriptor: []\n" });
    let problem = follower.until_problem(":3:1: ").await;
    assert!(problem.starts_with(&server.url()), "{problem}");
    assert_eq!(follower.active_rules.status().generation, 1);
}

#[tokio::test]
async fn answer_without_certain_end_keeps_the_rules() {
    let server = RulesServer::start(document("one", 1)).await;
    let follower = Follower::start(&server.url(), &[]);
    // Valid rules without the limit that the whole answer would have had.
    let cut = "domain: shop\ndescriptors: []\n";
    let chunked = format!("{:x}\r\n{cut}\r\n", cut.len());
    for (codings, body, expected) in [
        (&["gzip"][..], cut, "Transfer-Encoding \"gzip\""),
        (&["identity"], cut, "Transfer-Encoding \"identity\""),
        (&["chunked, gzip"], cut, "Transfer-Encoding \"chunked, gzip\""),
        (&["chunked", "gzip"], cut, "Transfer-Encoding \"chunked, gzip\""),
        (&["gzip, chunked"], &format!("{chunked}0\r\n\r\n"), "Transfer-Encoding \"gzip, chunked\""),
        (&["sdch"], cut, "Transfer-Encoding \"sdch\""),
        (&["\u{e9}"], cut, "Transfer-Encoding \"\u{e9}\""),
        (&["chunked"], &chunked, "cannot be fetched: "),
    ] {
        follower.until_limit(1).await;
        let lines: String = codings.iter().map(|coding| format!("transfer-encoding: {coding}\r\n")).collect();
        server.answer(Reply::ok(&lines, body));
        follower.until_problem(expected).await;
        assert_eq!(follower.limit(), Some(1), "{codings:?}");
        server.answer(document("one", 1));
    }
    server.answer(Reply::ok("transfer-encoding: Chunked\r\n", &format!("{chunked}0\r\n\r\n")));
    until(async || (follower.active_rules.status().generation == 2).then_some(())).await;
}

#[tokio::test]
async fn answer_in_another_coding_or_charset_keeps_the_rules() {
    let server = RulesServer::start(document("one", 1)).await;
    let follower = Follower::start(&server.url(), &[]);
    let length = format!("content-length: {}\r\n", rules(2).len());
    for (lines, expected) in [
        ("content-encoding: identity\r\ncontent-encoding: gzip\r\n", "Content-Encoding \"gzip\""),
        ("content-encoding: identity, br\r\n", "Content-Encoding \"br\""),
        ("content-encoding: \u{e9}\r\n", "Content-Encoding \"\u{e9}\""),
        ("content-type: text/yaml; charset=utf-7\r\n", "charset \"utf-7\""),
        ("content-type: text/yaml;x=y; Charset=\"UTF-16\"\r\n", "charset \"utf-16\""),
        ("content-type: text/yaml\r\ncontent-type: text/yaml;charset=\u{e9}\r\n", "charset \"\u{e9}\""),
    ] {
        follower.until_limit(1).await;
        server.answer(Reply::ok(&format!("{length}{lines}"), &rules(2)));
        follower.until_problem(expected).await;
        assert_eq!(follower.limit(), Some(1), "{lines}");
        server.answer(document("one", 1));
    }
    let lines = "content-encoding: Identity\r\ncontent-type: application/yaml; charset=UTF-8\r\n";
    server.answer(Reply::ok(&format!("{length}{lines}"), &rules(2)));
    follower.until_limit(2).await;
}

#[tokio::test]
async fn interim_answers_without_end_are_not_read() {
    let server = RulesServer::start(document("one", 1)).await;
    let follower = Follower::start(&server.url(), &[("rules.url.timeout", "5m")]);
    follower.until_limit(1).await;
    server.answer(Reply::Flood("HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"));
    follower.until_problem("more than 16 interim answers").await;
    let interim = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(16);
    let (length, text) = (rules(2).len(), rules(2));
    server
        .answer(Reply::Bytes(format!("{interim}HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{text}")));
    follower.until_limit(2).await;
}
