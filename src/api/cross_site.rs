//! Rejects cross-site requests that a web page makes a browser send to this process.
//!
//! A browser sends requests of any page to any address, with the page's origin in `Sec-Fetch-Site` and `Origin`. With
//! DNS rebinding, a host name of the page resolves to this process; then `Host` is that name.

use std::net::IpAddr;

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use tracing::debug;

/// Responds with 403 to a request of another origin. Clients other than browsers send neither header.
pub(super) async fn refuse(request: Request, next: Next) -> Response {
    let allowed = same_origin(request.uri(), request.headers());
    answer(allowed, request, next).await
}

/// Rejects cross-site requests where no token is required. Such pages serve this machine only, so a `Host` other than
/// `localhost` or a loopback address gets 403 too.
pub(super) async fn refuse_unless_loopback(request: Request, next: Next) -> Response {
    let (uri, headers) = (request.uri(), request.headers());
    let allowed = loopback(uri, headers).and_then(|()| same_origin(uri, headers));
    answer(allowed, request, next).await
}

async fn answer(allowed: Result<(), &'static str>, request: Request, next: Next) -> Response {
    match allowed {
        Ok(()) => next.run(request).await,
        Err(why) => {
            debug!(path = request.uri().path(), why, "refused a request");
            (StatusCode::FORBIDDEN, format!("{why}\n")).into_response()
        }
    }
}

fn same_origin(uri: &Uri, headers: &HeaderMap) -> Result<(), &'static str> {
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
            hosts(uri, headers).is_some_and(|hosts| hosts.iter().all(|host| *host == origin))
        })
    };
    if !headers.get_all(header::ORIGIN).iter().all(is_host) {
        return Err("cross-origin request, by its Origin header");
    }
    Ok(())
}

fn loopback(uri: &Uri, headers: &HeaderMap) -> Result<(), &'static str> {
    match hosts(uri, headers) {
        Some(hosts) if hosts.iter().all(is_loopback) => Ok(()),
        Some(_) | None => {
            Err("without admin.token_file the Host header must be localhost, 127.0.0.1 or [::1]")
        }
    }
}

/// All hosts that the request names, in `Host` headers and in the URI. `None` if there is none, or one is malformed.
fn hosts(uri: &Uri, headers: &HeaderMap) -> Option<Vec<Authority>> {
    let read = |host: &HeaderValue| Authority::try_from(host.as_bytes()).ok();
    let in_headers = headers.get_all(header::HOST).iter().map(read);
    let hosts: Option<Vec<_>> = uri.authority().cloned().map(Some).into_iter().chain(in_headers).collect();
    hosts.filter(|hosts| !hosts.is_empty())
}

fn is_loopback(host: &Authority) -> bool {
    let host = host.host();
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(headers: &[(&'static str, &str)]) -> HeaderMap {
        headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn is_local(uri: &str, given: &[(&'static str, &str)]) -> bool {
        loopback(&uri.parse().unwrap(), &headers(given)).is_ok()
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
        let is_same = |given: &[(&'static str, &str)]| {
            let host = [("host", "tollgate.example:8080")];
            same_origin(&"/json".parse().unwrap(), &headers(&[&host[..], given].concat())).is_ok()
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
        let without_host = headers(&[("origin", "http://tollgate.example:8080")]);
        assert!(same_origin(&"/json".parse().unwrap(), &without_host).is_err());
    }
}
