//! The address of rules. Its query may have a secret, so no text shows it.

use std::fmt;

use url::{Host, Url};

/// An `http` or `https` URL without a user.
#[derive(Clone, PartialEq, Eq)]
pub struct Address(Url);

impl Address {
    /// Whether a text means a URL and not a path, right or wrong.
    pub fn is_meant(text: &str) -> bool {
        ["http://", "https://"]
            .iter()
            .any(|scheme| text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme)))
    }

    /// Reads a URL. `None` for one of another scheme, and for one with a user, a password or a fragment.
    pub fn parse(text: &str) -> Option<Self> {
        if !Self::is_meant(text) {
            return None;
        }
        Self::from_url(Url::parse(text).ok()?)
    }

    /// A text that is meant as a URL, without what may be a secret.
    pub fn displayed(text: &str) -> String {
        let wrong = || match text.split_once("//") {
            Some((scheme, rest)) if rest.contains(['@', '?']) => format!("{scheme}//(not shown)"),
            _ => text.to_owned(),
        };
        Self::parse(text).map_or_else(wrong, |address| address.to_string())
    }

    fn from_url(url: Url) -> Option<Self> {
        let is_plain = url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
        (is_plain && ["http", "https"].contains(&url.scheme()) && url.has_host()).then_some(Self(url))
    }

    /// The address that a redirect from here names.
    pub(super) fn join(&self, location: &str) -> Option<Self> {
        Self::from_url(self.0.join(location).ok()?)
    }

    /// Whether the connection is over TLS.
    pub fn is_tls(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// Whether the host is this machine.
    pub fn is_loopback(&self) -> bool {
        match self.0.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.to_canonical().is_loopback(),
            None => false,
        }
    }

    /// Whether scheme, host and port are those of `other`.
    pub(super) fn has_origin_of(&self, other: &Self) -> bool {
        self.0.origin() == other.0.origin()
    }

    /// Whether the origin is that of `other`, and the path is in the folder of its path. What a server could decode to
    /// leave the folder is not in it.
    pub(super) fn is_in_folder_of(&self, other: &Self) -> bool {
        let folder = other.0.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        let rest = self.0.path().strip_prefix(folder).and_then(|rest| rest.strip_prefix('/'));
        let is_in_folder = rest.is_some_and(|rest| {
            let rest = rest.to_ascii_lowercase();
            !["%2e", "%2f", "%5c"].iter().any(|encoded| rest.contains(encoded))
        });
        self.has_origin_of(other) && (is_in_folder || self.0.path() == other.0.path())
    }

    /// The host, an IPv6 address without its brackets, and the port.
    pub(super) fn host_and_port(&self) -> (&str, u16) {
        let host = self.0.host_str().unwrap_or_default();
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        (bare, self.0.port_or_known_default().unwrap_or_default())
    }

    /// The value of the header `Host`.
    pub(super) fn host_header(&self) -> String {
        let host = self.0.host_str().unwrap_or_default();
        self.0.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
    }

    /// The target of a request.
    pub(super) fn target(&self) -> String {
        let query = self.0.query().map(|query| format!("?{query}")).unwrap_or_default();
        self.0.path().to_owned() + &query
    }

    /// The whole address with its query, which may be a secret.
    pub(super) fn secret_text(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let query = if self.0.query().is_some() { "?(not shown)" } else { "" };
        write!(f, "{}://{}{}{query}", self.0.scheme(), self.host_header(), self.0.path())
    }
}

// Without the query.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_is_shown_without_its_query() {
        for (text, shown) in [
            ("https://rules.example/edge.yaml?sig=secret", "https://rules.example/edge.yaml?(not shown)"),
            ("HTTPS://Rules.Example:8443/", "https://rules.example:8443/"),
            ("https://rules.example:443", "https://rules.example/"),
            ("http://[::1]:80/a b", "http://[::1]/a%20b"),
        ] {
            let address = Address::parse(text).unwrap();
            assert_eq!(address.to_string(), shown);
            assert!(!format!("{address:?}").contains("secret"));
        }
    }

    #[test]
    fn address_with_user_or_of_other_scheme_is_refused() {
        for text in [
            "https://user@host/",
            "https://:pa@host/",
            "https://host/#part",
            "https://",
            "ftp://host/",
            "rules",
        ] {
            assert_eq!(Address::parse(text), None, "{text}");
        }
    }

    #[test]
    fn host_is_loopback_only_by_address_or_as_localhost() {
        for (host, is_loopback) in [
            ("127.9.9.9", true),
            ("[::1]", true),
            ("[::ffff:127.0.0.1]", true),
            ("localhost", true),
            ("localhost.example", false),
            ("10.0.0.1", false),
        ] {
            let address = Address::parse(&format!("http://{host}:1/")).unwrap();
            assert_eq!(address.is_loopback(), is_loopback, "{host}");
        }
    }

    #[test]
    fn folder_of_rules_has_only_paths_below_it() {
        let own = Address::parse("https://host/team/a%2Fb.yaml?c").unwrap();
        for (location, is_in_folder) in [
            ("", true),
            ("other.yaml", true),
            ("/team/deep/er.yaml?d", true),
            ("/team", false),
            ("/teams/a.yaml", false),
            ("../a.yaml", false),
            ("x/../../a.yaml", false),
            ("x%2F..%2F..%2fa.yaml", false),
            ("..%5Ca.yaml", false),
            ("https://other/team/a.yaml", false),
        ] {
            assert_eq!(own.join(location).unwrap().is_in_folder_of(&own), is_in_folder, "{location}");
        }
    }

    #[test]
    fn redirect_keeps_origin_only_with_scheme_host_and_port() {
        let from = Address::parse("https://host:8443/a/b?c").unwrap();
        for (location, to, same) in [
            ("d", "https://host:8443/a/d", true),
            ("/d?e", "https://host:8443/d?(not shown)", true),
            ("https://HOST:8443/", "https://host:8443/", true),
            ("http://host:8443/", "http://host:8443/", false),
            ("//other:8443/", "https://other:8443/", false),
            ("https://host/", "https://host/", false),
        ] {
            let next = from.join(location).unwrap();
            assert_eq!((next.to_string().as_str(), next.has_origin_of(&from)), (to, same));
        }
        assert_eq!(from.join("ftp://host/"), None);
        assert_eq!(from.join("https://user:pa@host/"), None);
    }
}
