//! The operators' page: files that a browser shows, and the stream of samples that they display.
//!
//! The files are public and have no data. They ask the other endpoints of the listener, under the access rules of these.

use axum::{
    Router,
    http::header::{
        CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    },
    response::IntoResponse,
    routing::get,
};

mod live;
mod sample;

pub use live::{Live, router};

/// What a browser may load and do for the page: nothing from elsewhere, no inline script, no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Path, type and content of each file.
const FILES: [(&str, &str, &str); 16] = [
    ("/", HTML, include_str!("index.html")),
    ("/page/icon.svg", "image/svg+xml", include_str!("icon.svg")),
    ("/page/style.css", STYLE, include_str!("style.css")),
    ("/page/main.js", SCRIPT, include_str!("main.js")),
    ("/page/api.js", SCRIPT, include_str!("api.js")),
    ("/page/dom.js", SCRIPT, include_str!("dom.js")),
    ("/page/history.js", SCRIPT, include_str!("history.js")),
    ("/page/chart.js", SCRIPT, include_str!("chart.js")),
    ("/page/findings.js", SCRIPT, include_str!("findings.js")),
    ("/page/overview.js", SCRIPT, include_str!("overview.js")),
    ("/page/explain.js", SCRIPT, include_str!("explain.js")),
    ("/page/try.js", SCRIPT, include_str!("try.js")),
    ("/page/rules.js", SCRIPT, include_str!("rules.js")),
    ("/page/keys.js", SCRIPT, include_str!("keys.js")),
    ("/page/limits.js", SCRIPT, include_str!("limits.js")),
    ("/page/cluster.js", SCRIPT, include_str!("cluster.js")),
];

/// A router with the files of the page.
pub(super) fn files() -> Router {
    FILES.into_iter().fold(Router::new(), |router, (path, kind, content)| {
        router.route(path, get(async move || file(kind, content)))
    })
}

fn file(kind: &'static str, content: &'static str) -> impl IntoResponse {
    let headers = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        // Another version of the program has other files.
        (CACHE_CONTROL, "no-cache"),
    ];
    (headers, content)
}
