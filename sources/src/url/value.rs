//! Small values at URLs that name what is asked for, with their `ETag`.

use std::fmt;

use tollgate_counter::time::Clock;
use tollgate_net::http_client::percent_encode;

use crate::url::{
    address::Address,
    fetch::{Fetched, UrlSettings, fetch},
};

/// The longest value that is read, in bytes.
pub const VALUE_BYTES_MAX: usize = 4 * 1024;
/// The parts of a template that stand for what is asked for.
const DOMAIN: &str = "{domain}";
const DESCRIPTOR: &str = "{descriptor}";

/// A URL in which `{domain}` and `{descriptor}` stand for what is asked for.
#[derive(Clone, PartialEq, Eq)]
pub struct UrlTemplate(String);

/// Reads the values of descriptors at their URLs.
#[derive(Clone, Debug)]
pub struct UrlValues {
    template: UrlTemplate,
    settings: UrlSettings,
    clock: Clock,
}

impl UrlTemplate {
    /// The accepted texts.
    pub const EXPECTED: &str =
        "a URL with {domain} and {descriptor} in its path or query, as in https://HOST/{domain}/{descriptor}";

    /// The address for an example, from which scheme and host are known.
    pub fn example(&self) -> Option<Address> {
        self.address("domain", "descriptor")
    }

    /// The address for a descriptor. `None` for a domain that would leave its place in the path.
    fn address(&self, domain: &str, descriptor: &str) -> Option<Address> {
        if [".", ".."].contains(&domain) {
            return None;
        }
        let in_domain = self.0.replace(DOMAIN, &percent_encode(domain));
        Address::parse(&in_domain.replace(DESCRIPTOR, &percent_encode(descriptor)))
    }
}

impl TryFrom<String> for UrlTemplate {
    type Error = ();

    fn try_from(text: String) -> Result<Self, ()> {
        let rest = text.split_once("://").and_then(|(_, rest)| rest.split_once('/'));
        let is_in_path = rest.is_some_and(|(host, path)| {
            !host.contains('{') && path.contains(DOMAIN) && path.contains(DESCRIPTOR)
        });
        let template = Self(text);
        if is_in_path && template.example().is_some() { Ok(template) } else { Err(()) }
    }
}

// Without the query.
impl fmt::Debug for UrlTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UrlTemplate({:?})", self.example())
    }
}

impl UrlValues {
    /// Values at the URLs of `template`, which are asked for as `settings` say.
    pub fn new(template: UrlTemplate, settings: UrlSettings, clock: Clock) -> Self {
        let bytes_max = settings.bytes_max.min(VALUE_BYTES_MAX);
        Self { template, settings: UrlSettings { bytes_max, ..settings }, clock }
    }

    /// The value for a descriptor, unless it is that of `etag`. An error says why there is no whole answer.
    pub async fn read(&self, domain: &str, descriptor: &str, etag: Option<&str>) -> Result<Fetched, String> {
        let address = self.template.address(domain, descriptor).ok_or("the domain makes no URL")?;
        let settings = UrlSettings { address, ..self.settings.clone() };
        fetch(&settings, &self.clock, etag, settings.timeout).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(text: &str) -> Option<UrlTemplate> {
        UrlTemplate::try_from(text.to_owned()).ok()
    }

    #[test]
    fn template_names_domain_and_descriptor_behind_its_host() {
        for text in ["https://h/{domain}/{descriptor}", "http://[::1]:1/l?of={domain}&key={descriptor}"] {
            assert!(template(text).is_some(), "{text}");
        }
        for text in [
            "https://h/{domain}",
            "https://{domain}.h/{domain}/{descriptor}",
            "https://u:p@h/{domain}/{descriptor}",
            "ftp://h/{domain}/{descriptor}",
            "{domain}/{descriptor}",
        ] {
            assert!(template(text).is_none(), "{text}");
        }
    }

    #[test]
    fn descriptor_stays_in_its_part_of_the_address() {
        let template = template("https://h/limits/{domain}/{descriptor}").unwrap();
        let address = template.address("a/b", "user=../é?#&%").unwrap();
        assert_eq!(address.to_string(), "https://h/limits/a%2Fb/user%3D..%2F%C3%A9%3F%23%26%25");
        assert_eq!(template.address("..", "user=1"), None);
    }
}
