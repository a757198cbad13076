//! Sends requests of HTTP and gRPC through the layer.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use http::{Response, header::CONTENT_TYPE};
use serde_json::{Value, json};
use tokio::time::timeout;
use tonic_types::StatusExt;
use tower::{Layer, ServiceExt, service_fn};

use super::{
    notation::{Fields, PATIENCE, answer_of, client_options, code_name, request_of},
    scripted,
};
use crate::{Client, Decision, RateLimitLayer, Request, v1};

pub(super) async fn replay(mut vector: Fields) {
    let mut server = scripted::start(&["server".to_owned()]);
    let options = client_options(vector.options(), PATIENCE);
    let (request, answer) = (vector.get("request").map(request_of), vector.get("answer").map(answer_of));
    let passes: bool = vector.get("passes").unwrap();
    let waits = vector.time("waits_ms").unwrap_or_default();
    let limit: BTreeMap<String, String> = vector.get("limit").unwrap();
    for (protocol, content_type) in [("http", "text/html"), ("grpc", "application/grpc")] {
        let begin = Instant::now();
        let client = Client::new(&server.target, options.clone()).unwrap();
        let call = respond(client, request.clone(), content_type);
        let both = async { tokio::join!(call, reply(&mut server, answer.clone())) };
        let ((response, passed), ()) = timeout(PATIENCE, both).await.unwrap();
        assert_eq!(passed, passes);
        assert!(begin.elapsed() >= waits);
        let headers = response.headers();
        let text = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            (name.to_string(), value.to_str().unwrap().to_owned())
        };
        let sent = headers.iter().map(text).filter(|(name, _)| name.starts_with("ratelimit-"));
        assert_eq!(sent.collect::<BTreeMap<_, _>>(), limit);
        assert_eq!(response.body(), "");
        let refused = match protocol {
            "http" if response.status() == 200 => Value::Null,
            "http" => {
                let wait = headers.get("retry-after").map(|value| value.to_str().unwrap());
                json!({"status": response.status().as_u16(), "retry_after": wait})
            }
            _ => tonic::Status::from_header_map(headers).map_or(Value::Null, |status| describe(&status)),
        };
        let mut expected: Value = vector.get(protocol).unwrap_or(Value::Null);
        // The layer limits services with any body, so only `refusal` has one.
        let body = expected.as_object_mut().and_then(|expected| expected.remove("body"));
        if let (Some(body), Some(answer)) = (body, &answer) {
            let refusal = Decision::of_answer(answer.clone()).unwrap().refusal::<String>();
            assert_eq!(
                (refusal.headers()[CONTENT_TYPE].as_bytes(), json!(refusal.body())),
                (&b"text/plain; charset=utf-8"[..], body)
            );
        }
        assert_eq!(refused, expected);
    }
}

/// Sends a request, and says whether the handler is reached.
async fn respond(client: Client, request: Option<Request>, content_type: &str) -> (Response<String>, bool) {
    let layer = RateLimitLayer::new(client, move |_: &http::Request<()>| request.clone());
    let passed = std::sync::Arc::new(AtomicBool::new(false));
    let reached = passed.clone();
    let handler = service_fn(move |_| {
        reached.store(true, Ordering::SeqCst);
        async { Ok::<_, Infallible>(Response::default()) }
    });
    let call = http::Request::builder().header(CONTENT_TYPE, content_type).body(()).unwrap();
    let response = layer.layer(handler).oneshot(call).await.unwrap();
    (response, passed.load(Ordering::SeqCst))
}

async fn reply(server: &mut scripted::Scripted, answer: Option<v1::Answer>) {
    if let Some(answer) = answer {
        let call = server.calls.recv().await.unwrap();
        let replied = scripted::Replied { answers: vec![answer], ..Default::default() };
        assert!(call.reply.send(Ok(replied)).is_ok());
    }
}

fn describe(status: &tonic::Status) -> Value {
    let retry = status.get_details_retry_info().and_then(|info| info.retry_delay);
    json!({
        "code": code_name(status.code()),
        "message": status.message(),
        "retry_delay_ms": retry.map(|delay| delay.as_millis()),
    })
}
