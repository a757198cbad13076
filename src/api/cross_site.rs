//! Rejects cross-site requests that a web page makes a browser send to this process.
//!
//! A browser sends requests of any page to any address. `Origin` has the page's origin if the method is neither GET nor
//! HEAD; `Sec-Fetch-Site` tells of it, but is sent to `https` and `localhost` only. With DNS rebinding, a host name of
//! the page resolves to this process; then `Host` is that name.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderName, HeaderValue, Method, StatusCode, Uri, Version, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tracing::debug;

/// Headers that browsers, and proxies between them and a server, send by themselves.
const OF_BROWSERS: [&str; 20] = [
    "accept",
    "authorization",
    "cache-control",
    "connection",
    "cookie",
    "dnt",
    "forwarded",
    "host",
    "keep-alive",
    "origin",
    "pragma",
    "priority",
    "range",
    "referer",
    "save-data",
    "te",
    "upgrade",
    "upgrade-insecure-requests",
    "user-agent",
    "via",
];

/// How further headers begin that browsers and proxies send, or that a page may set without asking the server.
const OF_BROWSERS_BEGIN: [&str; 12] = [
    "accept-",
    "content-",
    "device-",
    "if-",
    "ping-",
    "proxy-",
    "sec-",
    "x-client-data",
    "x-forwarded-for",
    "x-moz",
    "x-purpose",
    "x-requested-with",
];

/// The names under which callers know this process. A name that a web page can have is served only if it is among them.
#[derive(Clone, Debug, Default)]
pub struct Hosts(Arc<[String]>);

/// Tells requests of gateways from those of browsers by headers that a browser does not send for a page of another
/// origin, unless it has asked the server for permission first.
#[derive(Clone, Debug)]
pub(super) struct GatewayRequests {
    pub(super) hosts: Hosts,
    /// The headers that descriptors are made of.
    pub(super) headers: Arc<[HeaderName]>,
}

impl Hosts {
    /// Accepts `names`, in addition to the names that are always served.
    pub fn new(names: Vec<String>) -> Self {
        Self(names.into())
    }

    /// Whether each host that the request names is served. A request without any is not of a browser.
    fn check(&self, request: &Request) -> Result<(), &'static str> {
        if request.uri().authority().is_none() && !request.headers().contains_key(header::HOST) {
            return Ok(());
        }
        match hosts(request) {
            Some(hosts) if hosts.iter().all(|host| self.has(host.host())) => Ok(()),
            Some(_) | None => Err("the Host header is none of http.hosts"),
        }
    }

    /// Addresses are no names. No page of the Internet has a name without a dot, or one that Kubernetes gives.
    fn has(&self, host: &str) -> bool {
        let ends_with = |end: &str| {
            let at = host.len().checked_sub(end.len());
            at.and_then(|at| host.get(at..)).is_some_and(|last| last.eq_ignore_ascii_case(end))
        };
        let is_local_name = !host.is_empty() && !host.contains(['.', ':', '@', '[']);
        address(host).is_some()
            || is_local_name
            || ends_with(".svc")
            || ends_with(".svc.cluster.local")
            || self.names(host)
    }

    fn names(&self, host: &str) -> bool {
        self.0.iter().any(|name| name.eq_ignore_ascii_case(host))
    }

    /// Lets requests of this origin through that are for these hosts.
    pub(super) fn guard(self) -> CrossSiteGuard {
        Arc::new(move |request| self.check(request).and_then(|()| same_origin(request)))
    }

    /// Whether the request names hosts, and each is one of the given names.
    fn names_all(&self, request: &Request) -> bool {
        hosts(request).is_some_and(|hosts| hosts.iter().all(|host| self.names(host.host())))
    }
}

impl GatewayRequests {
    /// Lets requests through that no page of another origin has caused. A gateway forwards the headers of its clients, so
    /// the origin alone does not tell.
    pub(super) fn guard(self) -> CrossSiteGuard {
        Arc::new(move |request| self.check(request))
    }

    fn check(&self, request: &Request) -> Result<(), &'static str> {
        // Some gateways pass the host of their client on, so this must be asked for.
        if !self.hosts.0.is_empty() {
            self.hosts.check(request)?;
        }
        let is_of_gateway = request.version() < Version::HTTP_11
            || request.headers().keys().any(|name| self.is_set_by_gateway(name));
        if is_of_gateway {
            return Ok(());
        }
        // Without TLS, a GET of a page in a browser may tell nothing of its origin.
        if request.method() != Method::POST && !self.hosts.names_all(request) {
            return Err("GET /check without a header of a gateway, such as X-Real-IP: \
                        send one, or POST, or name this host in http.hosts");
        }
        same_origin(request)
    }

    /// Whether only a gateway sends the header: neither a browser by itself nor a proxy between the two.
    fn is_set_by_gateway(&self, name: &HeaderName) -> bool {
        let text = name.as_str();
        let begins = |with: &&str| text.starts_with(with);
        let is_usual = text == "x-real-ip" || ["x-forwarded-", "x-original-"].iter().any(begins);
        let is_of_browser = OF_BROWSERS.contains(&text) || OF_BROWSERS_BEGIN.iter().any(begins);
        (is_usual || self.headers.contains(name)) && !is_of_browser
    }
}

/// Lets a request through, or says why not.
pub(super) type CrossSiteGuard = Arc<dyn Fn(&Request) -> Result<(), &'static str> + Send + Sync>;

/// Responds with 403 to a request that the guard does not let through.
pub(super) async fn refuse_cross_site(
    State(guard): State<CrossSiteGuard>,
    request: Request,
    next: Next,
) -> Response {
    match guard(&request) {
        Ok(()) => next.run(request).await,
        Err(why) => {
            debug!(path = request.uri().path(), why, "refused a request");
            (StatusCode::FORBIDDEN, format!("{why}\n")).into_response()
        }
    }
}

/// Lets requests of this origin through. Clients other than browsers send no header that tells of another one.
pub(super) fn same_origin(request: &Request) -> Result<(), &'static str> {
    let headers = request.headers();
    // `none`: the user typed the address or opened a bookmark.
    let is_own = |site: &HeaderValue| site == "same-origin" || site == "none";
    if !headers.get_all("sec-fetch-site").iter().all(is_own) {
        return Err("cross-origin request, by its Sec-Fetch-Site header");
    }
    let is_host = |origin: &HeaderValue| {
        let origin = Uri::try_from(origin.as_bytes()).ok();
        // `null`, the origin of a page without one, has no scheme.
        let origin = origin
            .filter(|origin| origin.scheme().is_some())
            .and_then(|origin| origin.into_parts().authority);
        origin.is_some_and(|origin| {
            hosts(request).is_some_and(|hosts| hosts.iter().all(|host| *host == origin))
        })
    };
    if !headers.get_all(header::ORIGIN).iter().all(is_host) {
        return Err("cross-origin request, by its Origin header");
    }
    Ok(())
}

/// Lets requests of this origin through that are for `localhost` or a loopback address. For pages that require no token,
/// and so serve this machine only.
pub(super) fn loopback(request: &Request) -> Result<(), &'static str> {
    match hosts(request) {
        Some(hosts) if hosts.iter().all(is_loopback) => same_origin(request),
        Some(_) | None => {
            Err("without admin.token_file the Host header must be localhost, 127.0.0.1 or [::1]")
        }
    }
}

/// All hosts that the request names, in `Host` headers and in the URI. `None` if there is none, or one is malformed.
fn hosts(request: &Request) -> Option<Vec<Authority>> {
    let read = |host: &HeaderValue| Authority::try_from(host.as_bytes()).ok();
    let in_headers = request.headers().get_all(header::HOST).iter().map(read);
    let in_uri = request.uri().authority();
    let hosts: Option<Vec<_>> = in_uri.cloned().map(Some).into_iter().chain(in_headers).collect();
    hosts.filter(|hosts| !hosts.is_empty())
}

fn is_loopback(host: &Authority) -> bool {
    let host = host.host();
    host.eq_ignore_ascii_case("localhost")
        || address(host).is_some_and(|address| address.to_canonical().is_loopback())
}

fn address(host: &str) -> Option<IpAddr> {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host).parse().ok()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn request(uri: &str, headers: &[(&str, &str)]) -> Request {
        let request = Request::builder().uri(uri);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(Body::empty()).unwrap()
    }

    fn is_local(uri: &str, given: &[(&str, &str)]) -> bool {
        loopback(&request(uri, given)).is_ok()
    }

    #[test]
    fn host_is_loopback_by_name_or_address_with_any_port() {
        for host in [
            "localhost",
            "LocalHost:6070",
            "127.0.0.1",
            "127.8.9.1:80",
            "[::1]",
            "[::1]:6070",
            "[::ffff:127.0.0.1]:1",
        ] {
            assert!(is_local("/log", &[("host", host)]), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "[::2]",
            "0.0.0.0",
            "",
            "::1",
            "localhost, evil.example",
            "evil.example@",
            "a b",
        ] {
            assert!(!is_local("/log", &[("host", host)]), "{host:?}");
        }
    }

    #[test]
    fn names_that_no_page_can_have_and_those_of_the_setting_are_served() {
        let hosts = Hosts::new(vec!["tollgate.example".to_owned()]);
        let is_served = |host: &str| hosts.check(&request("/json", &[("host", host)])).is_ok();
        for host in [
            "localhost",
            "127.0.0.1:8080",
            "10.1.2.3",
            "[fd00::1]:8080",
            "tollgate",
            "tollgate:8080",
            "tollgate.edge.svc",
            "tollgate.edge.SVC:8080",
            "tollgate.edge.svc.cluster.local",
            "Tollgate.Example:1",
        ] {
            assert!(is_served(host), "{host}");
        }
        for host in [
            "evil.example",
            "a.tollgate.example",
            "tollgate.example.evil.example",
            "10.0.0.1.evil.example",
            "svc.evil.example",
            "evil.example:8080",
            "",
            "localhost, evil.example",
        ] {
            assert!(!is_served(host), "{host:?}");
        }
        assert!(hosts.check(&request("/json", &[])).is_ok(), "no browser leaves out Host");
        assert!(hosts.check(&request("http://evil.example/json", &[("host", "a")])).is_err());
    }

    #[test]
    fn every_host_of_request_must_be_loopback() {
        let local = ("host", "localhost");
        assert!(is_local("http://localhost/log", &[local]) && is_local("http://[::1]/log", &[]));
        assert!(!is_local("http://evil.example/log", &[local]));
        assert!(!is_local("http://localhost/log", &[("host", "evil.example")]));
        assert!(!is_local("/log", &[local, ("host", "evil.example")]));
        assert!(!is_local("/log", &[]));
    }

    #[test]
    fn request_without_cross_site_header_is_same_origin() {
        let is_same = |given: &[(&str, &str)]| {
            let host = [("host", "tollgate.example:8080")];
            same_origin(&request("/json", &[&host[..], given].concat())).is_ok()
        };
        assert!(is_same(&[]));
        for site in ["none", "same-origin"] {
            assert!(is_same(&[("sec-fetch-site", site)]), "{site}");
        }
        for site in ["same-site", "cross-site", "", "whatever"] {
            assert!(!is_same(&[("sec-fetch-site", site)]), "{site}");
        }
        for origin in ["http://tollgate.example:8080", "https://Tollgate.example:8080"] {
            assert!(is_same(&[("origin", origin)]), "{origin}");
        }
        for origin in [
            "http://evil.example",
            "http://tollgate.example",
            "http://tollgate.example:80",
            "null",
            "",
            "tollgate.example:8080",
        ] {
            assert!(!is_same(&[("origin", origin)]), "{origin}");
        }
        assert!(!is_same(&[("sec-fetch-site", "same-origin"), ("origin", "http://evil.example")]));
        assert!(!is_same(&[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")]));
        let without_host = request("/json", &[("origin", "http://tollgate.example:8080")]);
        assert!(same_origin(&without_host).is_err());
    }
}
