//! `/check`: decides a request by its headers, for gateways that ask over HTTP and know no gRPC rate limiting.

use std::str::FromStr;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use prost::Message as _;

use crate::api::proto::envoy::{
    extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
};

/// How requests are decided by their headers.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The domain of the rules.
    pub domain: Option<String>,
    /// The descriptors of a request; `None` serves no `/check`.
    pub descriptors: Option<Template>,
    /// The status of a refused request.
    pub denied_status: u16,
    /// The status of a request that cannot be decided.
    pub failure_status: u16,
}

/// The descriptors of a request as a text: `key={header}` or `key=text`, entries separated by commas, descriptors by
/// semicolons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Vec<EntryTemplate>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct EntryTemplate {
    key: String,
    value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Text(String),
    Header(HeaderName),
}

/// `/check` as it is set.
#[derive(Clone, Debug)]
pub(super) struct Check {
    domain: String,
    template: Template,
    denied: StatusCode,
    failure: StatusCode,
}

impl Settings {
    /// What is served; `None` without a domain and descriptors.
    pub(super) fn check(self) -> Option<Check> {
        let status = |number, default| StatusCode::from_u16(number).unwrap_or(default);
        Some(Check {
            domain: self.domain?,
            template: self.descriptors?,
            denied: status(self.denied_status, StatusCode::TOO_MANY_REQUESTS),
            failure: status(self.failure_status, StatusCode::SERVICE_UNAVAILABLE),
        })
    }
}

impl Check {
    /// The encoded request for these headers; `None` if no descriptor is complete, so that there is nothing to decide.
    pub(super) fn request(&self, headers: &HeaderMap) -> Option<Vec<u8>> {
        let descriptors = self.template.descriptors(headers);
        let request =
            RateLimitRequest { domain: self.domain.clone(), descriptors, ..RateLimitRequest::default() };
        (!request.descriptors.is_empty()).then(|| request.encode_to_vec())
    }

    /// The headers that the descriptors are made of.
    pub(super) fn headers(&self) -> Vec<HeaderName> {
        let header = |entry: &EntryTemplate| match &entry.value {
            Value::Text(_) => None,
            Value::Header(name) => Some(name.clone()),
        };
        self.template.0.iter().flatten().filter_map(header).collect()
    }

    /// The status of a decided request.
    pub(super) fn status(&self, passes: bool) -> StatusCode {
        if passes { StatusCode::OK } else { self.denied }
    }

    /// The status of a request that cannot be decided.
    pub(super) fn failure(&self) -> StatusCode {
        self.failure
    }
}

/// The response headers and the body of an encoded reply.
pub(super) fn headers_and_body(reply: &[u8]) -> (HeaderMap, Vec<u8>) {
    let response = RateLimitResponse::decode(reply).unwrap_or_default();
    let header = |header: &crate::api::proto::envoy::config::core::v3::HeaderValue| {
        let name = HeaderName::from_str(&header.key).ok()?;
        let value = if header.raw_value.is_empty() { header.value.as_bytes() } else { &header.raw_value };
        Some((name, HeaderValue::from_bytes(value).ok()?))
    };
    let headers = response.response_headers_to_add.iter().filter_map(header).collect();
    (headers, response.raw_body)
}

impl Template {
    /// The descriptors of which every header is present, as Envoy leaves out the others.
    fn descriptors(&self, headers: &HeaderMap) -> Vec<RateLimitDescriptor> {
        let descriptor = |entries: &Vec<EntryTemplate>| {
            let entries = entries.iter().map(|entry| entry.of(headers)).collect::<Option<_>>()?;
            Some(RateLimitDescriptor { entries, ..RateLimitDescriptor::default() })
        };
        self.0.iter().filter_map(descriptor).collect()
    }
}

impl EntryTemplate {
    fn of(&self, headers: &HeaderMap) -> Option<Entry> {
        let value = match &self.value {
            Value::Text(text) => text.clone(),
            Value::Header(name) => escaped(headers.get(name)?.as_bytes()),
        };
        Some(Entry { key: self.key.clone(), value })
    }
}

/// A header value as a text. Bytes that are not UTF-8 become `%XX`, so that different values have different counters.
fn escaped(value: &[u8]) -> String {
    let mut text = String::with_capacity(value.len());
    for chunk in value.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|byte| format!("%{byte:02X}")));
    }
    text
}

impl TryFrom<String> for Template {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let entry = |text: &str| {
            let (key, value) = text.split_once('=').ok_or("an entry is key={header} or key=text")?;
            let header =
                value.trim().strip_prefix('{').map(|name| name.strip_suffix('}').unwrap_or_default());
            let value = match header {
                Some(name) => Value::Header(HeaderName::from_str(name).map_err(|_| "not a header name")?),
                None => Value::Text(value.trim().to_owned()),
            };
            let key = key.trim().to_owned();
            if key.is_empty() { Err("a key is empty") } else { Ok(EntryTemplate { key, value }) }
        };
        let descriptor = |text: &str| text.split(',').map(entry).collect::<Result<Vec<_>, _>>();
        text.split(';').map(descriptor).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested(template: &str, given: &[(&str, &str)]) -> Option<Vec<Vec<(String, String)>>> {
        let check = Settings {
            domain: Some("d".to_owned()),
            descriptors: Some(Template::try_from(template.to_owned()).unwrap()),
            denied_status: 403,
            failure_status: 200,
        };
        let check = check.check().unwrap();
        assert_eq!((check.status(false).as_u16(), check.failure().as_u16()), (403, 200));
        let headers =
            given.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let request = RateLimitRequest::decode(&*check.request(&headers)?).unwrap();
        assert_eq!(request.domain, "d");
        let entries = |descriptor: RateLimitDescriptor| {
            descriptor.entries.into_iter().map(|entry| (entry.key, entry.value)).collect()
        };
        Some(request.descriptors.into_iter().map(entries).collect())
    }

    fn entry(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn descriptors_have_texts_and_values_of_headers() {
        let template = "route=shop, user={X-User}; path={x-forwarded-uri}";
        let given = [("x-user", "ann"), ("x-forwarded-uri", "/a,b;c=d")];
        let expected =
            vec![vec![entry("route", "shop"), entry("user", "ann")], vec![entry("path", "/a,b;c=d")]];
        assert_eq!(requested(template, &given), Some(expected));
    }

    #[test]
    fn descriptor_without_its_header_is_left_out() {
        let template = "user={x-user};path={x-path}";
        assert_eq!(requested(template, &[("x-path", "/")]), Some(vec![vec![entry("path", "/")]]));
        assert_eq!(requested(template, &[]), None);
    }

    #[test]
    fn header_values_beyond_utf8_stay_different() {
        let value = |bytes: &[u8]| {
            let template = Template::try_from("user={x-user}".to_owned()).unwrap();
            let headers = [("x-user".parse().unwrap(), HeaderValue::from_bytes(bytes).unwrap())];
            template.descriptors(&headers.into_iter().collect()).remove(0).entries.remove(0).value
        };
        assert_eq!(value(b"ann\xff"), "ann%FF");
        assert_eq!(value(b"ann\xfe\xe2\x82"), "ann%FE%E2%82");
        assert_eq!(value("é%".as_bytes()), "é%");
    }

    #[test]
    fn wrong_template_is_refused() {
        for text in ["", "user", "={x}", "user={}", "user={x y}", "user={x", "a={b};;", "a=b,"] {
            assert!(Template::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
