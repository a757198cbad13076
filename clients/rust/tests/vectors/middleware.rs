//! Sends requests of HTTP and gRPC through the layer.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use http::{HeaderMap, Response, header::CONTENT_TYPE};
use serde::Deserialize;
use tonic_types::StatusExt;
use tower::{Layer, ServiceExt, service_fn};

use super::{
    notation::{Answer, Asked, ClientFields, code_name, millis},
    scripted::Scripted,
};
use crate::{Client, Options, RateLimitLayer};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MiddlewareVector {
    name: String,
    #[serde(default)]
    options: ClientFields,
    request: Option<Asked>,
    answer: Option<Answer>,
    passes: bool,
    #[serde(default)]
    waits_ms: u64,
    limit: BTreeMap<String, String>,
    http: Option<HttpFields>,
    grpc: Option<GrpcFields>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpFields {
    status: u16,
    retry_after: Option<String>,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct GrpcFields {
    code: String,
    message: String,
    retry_delay_ms: Option<u64>,
}

pub(super) async fn replay(vector: MiddlewareVector) {
    println!("{}", vector.name);
    assert_eq!(vector.passes, vector.http.is_none() && vector.grpc.is_none());
    let headers = headers_of(&vector, "text/html").await;
    assert_eq!(headers.0, vector.http.as_ref().map_or(200, |http| http.status));
    let retry_after = headers.1.get("retry-after").map(|value| value.to_str().unwrap());
    assert_eq!(retry_after, vector.http.as_ref().and_then(|http| http.retry_after.as_deref()));

    let (status, headers) = headers_of(&vector, "application/grpc").await;
    assert_eq!(status, 200);
    let refused = tonic::Status::from_header_map(&headers).map(|status| {
        let retry = status.get_details_retry_info().and_then(|info| info.retry_delay);
        GrpcFields {
            code: code_name(status.code()),
            message: status.message().to_owned(),
            retry_delay_ms: retry.map(|delay| delay.as_millis().try_into().unwrap()),
        }
    });
    assert_eq!(refused, vector.grpc);
}

/// The status and the headers of the response to a request of this type.
async fn headers_of(vector: &MiddlewareVector, content_type: &str) -> (u16, HeaderMap) {
    let mut server = Scripted::start();
    let timeout = std::time::Duration::from_secs(60);
    let options = Options { timeout, ..vector.options.options() };
    let client = Client::new(&server.target, options).unwrap();
    let described = vector.request.as_ref().map(|asked| asked.request.clone());
    let layer = RateLimitLayer::new(client, move |_: &http::Request<()>| described.clone());
    let passed = std::sync::Arc::new(AtomicBool::new(false));
    let handler = {
        let passed = passed.clone();
        service_fn(move |_| {
            passed.store(true, Ordering::SeqCst);
            async { Ok::<_, Infallible>(Response::<String>::default()) }
        })
    };
    let request = http::Request::builder().header(CONTENT_TYPE, content_type).body(()).unwrap();
    let begin = Instant::now();
    let answer = async {
        if let Some(answer) = &vector.answer {
            let call = server.calls.recv().await.unwrap();
            call.reply.send(Ok((vec![answer.0.clone()], String::new()))).unwrap();
        }
    };
    let (response, ()) = tokio::join!(layer.layer(handler).oneshot(request), answer);
    assert!(begin.elapsed() >= millis(vector.waits_ms));
    assert_eq!(passed.load(Ordering::SeqCst), vector.passes);
    let (parts, body) = response.unwrap().into_parts();
    assert_eq!(body, "");
    let text = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        (name.to_string(), value.to_str().unwrap().to_owned())
    };
    let limit: BTreeMap<_, _> =
        parts.headers.iter().map(text).filter(|(name, _)| name.starts_with("ratelimit-")).collect();
    assert_eq!(limit, vector.limit);
    (parts.status.as_u16(), parts.headers)
}
