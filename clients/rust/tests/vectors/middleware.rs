//! Sends requests of HTTP and gRPC through the layer.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use http::{
    Response,
    header::{ACCEPT, CONTENT_TYPE},
};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::time::timeout;
use tonic_types::StatusExt;
use tower::{Layer, ServiceExt, service_fn};

use super::{
    notation::{Fields, PATIENCE, answer_of, client_options, code_name, request_of},
    scripted,
};
use crate::{Client, LimitedBody, RateLimitLayer, Request, v1};

pub(super) async fn replay(mut vector: Fields) {
    let mut server = scripted::start(&["server".to_owned()]);
    let options = client_options(vector.options(), PATIENCE);
    let (request, answer) = (vector.get("request").map(request_of), vector.get("answer").map(answer_of));
    let accept: Option<String> = vector.get("accept");
    let passes: bool = vector.get("passes").unwrap();
    let waits = vector.time("waits_ms").unwrap_or_default();
    let limit: BTreeMap<String, String> = vector.get("limit").unwrap();
    for (protocol, content_type) in [("http", "text/html"), ("grpc", "application/grpc")] {
        let begin = Instant::now();
        let client = Client::new(&server.target, options.clone()).unwrap();
        let call = respond(client, request.clone(), content_type, accept.as_deref());
        let both = async { tokio::join!(call, reply(&mut server, answer.clone())) };
        let ((response, passed), ()) = timeout(PATIENCE, both).await.unwrap();
        assert_eq!(passed, passes);
        assert!(begin.elapsed() >= waits);
        let (response, body) = response.into_parts();
        let headers = &response.headers;
        let text = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
            (name.to_string(), value.to_str().unwrap().to_owned())
        };
        let sent = headers.iter().map(text).filter(|(name, _)| name.starts_with("ratelimit-"));
        assert_eq!(sent.collect::<BTreeMap<_, _>>(), limit);
        let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
        let refused = match protocol {
            "http" if response.status == 200 => Value::Null,
            "http" => {
                let wait = headers.get("retry-after").map(|value| value.to_str().unwrap());
                let mut refused = json!({"status": response.status.as_u16(), "retry_after": wait});
                if let Some(content_type) = headers.get(CONTENT_TYPE) {
                    let content_type = content_type.to_str().unwrap();
                    refused["type"] = content_type.split(';').next().into();
                    refused["body"] = body.as_str().into();
                }
                refused
            }
            _ => tonic::Status::from_header_map(headers).map_or(Value::Null, |status| describe(&status)),
        };
        let mut expected: Value = vector.get(protocol).unwrap_or(Value::Null);
        if let Some(expected) = expected.as_object_mut().filter(|expected| expected.contains_key("body")) {
            expected.entry("type").or_insert("text/plain".into());
        }
        assert_eq!(refused, expected);
    }
}

/// Sends a request, and says whether the handler is reached.
async fn respond(
    client: Client,
    request: Option<Request>,
    content_type: &str,
    accept: Option<&str>,
) -> (Response<LimitedBody<String>>, bool) {
    let layer = RateLimitLayer::new(client, move |_: &http::Request<()>| request.clone());
    let passed = std::sync::Arc::new(AtomicBool::new(false));
    let reached = passed.clone();
    let handler = service_fn(move |_| {
        reached.store(true, Ordering::SeqCst);
        async { Ok::<_, Infallible>(Response::<String>::default()) }
    });
    let mut call = http::Request::builder().header(CONTENT_TYPE, content_type);
    if let Some(accept) = accept {
        call = call.header(ACCEPT, accept);
    }
    let call = call.body(()).unwrap();
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
