//! `/check`: decides a request by its headers, for gateways that ask over HTTP and know no gRPC rate limiting.

use std::{borrow::Cow, str::FromStr};

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use prost::Message as _;
use tollgate_wire::{
    descriptor_template::{self, EntryTemplate, FieldPresence, Fields, ValueFilter},
    descriptor_text,
    proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::{RateLimitRequest, RateLimitResponse},
    },
};

/// How requests are decided by their headers.
#[derive(Clone, Debug, Default)]
pub struct ForwardAuthSettings {
    /// The domain of the rules.
    pub domain: Option<String>,
    /// The descriptors of a request; `None` serves no `/check`.
    pub descriptors: Option<HeaderTemplate>,
    /// The status of a refused request.
    pub denied_status: u16,
    /// The status of a request that cannot be decided.
    pub failure_status: u16,
}

/// The descriptors of a request as a text: `key={header}` or `key=text`, entries separated by commas, descriptors by
/// semicolons. A header may have filters, and is required unless it is `optional`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderTemplate {
    descriptors: descriptor_template::DescriptorTemplate,
    /// The headers of the descriptors, each once.
    headers: Vec<HeaderName>,
}

/// A required header of a request is missing, or empty after its filters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the header {0} is missing or empty")]
pub(super) struct MissingHeader<'t>(&'t str);

/// The values of the headers of a request.
struct HeaderValues<'h>(&'h HeaderMap);

/// `/check` as it is set.
#[derive(Clone, Debug)]
pub(super) struct ForwardAuthCheck {
    domain: String,
    template: HeaderTemplate,
    denied: StatusCode,
    /// The status of a request that cannot be decided.
    pub(super) failure: StatusCode,
}

impl ForwardAuthSettings {
    /// `/check` as it is served; `None` without a domain and descriptors.
    pub(super) fn check(self) -> Option<ForwardAuthCheck> {
        let status = |number, default| StatusCode::from_u16(number).unwrap_or(default);
        Some(ForwardAuthCheck {
            domain: self.domain?,
            template: self.descriptors?,
            denied: status(self.denied_status, StatusCode::TOO_MANY_REQUESTS),
            failure: status(self.failure_status, StatusCode::SERVICE_UNAVAILABLE),
        })
    }
}

impl ForwardAuthCheck {
    /// The encoded request for these headers; `None` if no descriptor is complete, so that there is nothing to decide.
    pub(super) fn request(&self, headers: &HeaderMap) -> Result<Option<Vec<u8>>, MissingHeader<'_>> {
        let descriptors = self.template.descriptors(headers)?;
        let request =
            RateLimitRequest { domain: self.domain.clone(), descriptors, ..RateLimitRequest::default() };
        Ok((!request.descriptors.is_empty()).then(|| request.encode_to_vec()))
    }

    /// The headers that the descriptors are made of.
    pub(super) fn headers(&self) -> &[HeaderName] {
        &self.template.headers
    }

    /// The status of a decided request.
    pub(super) fn status(&self, passes: bool) -> StatusCode {
        if passes { StatusCode::OK } else { self.denied }
    }
}

/// The response headers and the body of an encoded reply.
pub(super) fn headers_and_body(reply: &[u8]) -> (HeaderMap, Vec<u8>) {
    let response = RateLimitResponse::decode(reply).unwrap_or_default();
    let header = |header: &tollgate_wire::proto::envoy::config::core::v3::HeaderValue| {
        let name = HeaderName::from_str(&header.key).ok()?;
        let value = if header.raw_value.is_empty() { header.value.as_bytes() } else { &header.raw_value };
        Some((name, HeaderValue::from_bytes(value).ok()?))
    };
    let headers = response.response_headers_to_add.iter().filter_map(header).collect();
    (headers, response.raw_body)
}

impl HeaderTemplate {
    /// The descriptors of these headers, without those that lack an optional one.
    fn descriptors(&self, headers: &HeaderMap) -> Result<Vec<RateLimitDescriptor>, MissingHeader<'_>> {
        let values = HeaderValues(headers);
        let descriptors = self.descriptors.descriptors().map(|entries| descriptor(entries, &values));
        descriptors.filter_map(Result::transpose).collect()
    }
}

/// The descriptor of these entries; `None` if it lacks an optional header.
fn descriptor<'t>(
    templates: &'t [EntryTemplate],
    values: &HeaderValues<'_>,
) -> Result<Option<RateLimitDescriptor>, MissingHeader<'t>> {
    let mut entries = Vec::with_capacity(templates.len());
    let mut is_complete = true;
    for template in templates {
        let mut value = Vec::new();
        match template.fill(values, &mut value) {
            Ok(()) => entries.push(Entry { key: template.key.clone(), value }),
            Err(missing) => match missing.presence {
                FieldPresence::Required => return Err(MissingHeader(&missing.name)),
                // The entries behind it may lack a required one.
                FieldPresence::Optional => is_complete = false,
            },
        }
    }
    Ok(is_complete.then(|| RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }))
}

impl Fields for HeaderValues<'_> {
    /// The value of a header. As in HTTP, several of one name are one list.
    fn get(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        let mut values = self.0.get_all(name).iter().map(HeaderValue::as_bytes);
        let first = Cow::Borrowed(values.next()?);
        Some(values.fold(first, |list, value| Cow::Owned([&*list, b", ", value].concat())))
    }
}

/// What counts of a header without filters, so that a client can neither invent its address nor have a counter for
/// each query.
fn default_filter(header: &HeaderName) -> Option<ValueFilter> {
    let name = header.as_str();
    if name == "x-forwarded-for" {
        Some(ValueFilter::LAST)
    } else if ["-uri", "-url", "-path"].iter().any(|end| name.ends_with(end)) {
        Some(ValueFilter::Path)
    } else {
        None
    }
}

impl TryFrom<String> for HeaderTemplate {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let descriptors = text.split(';').map(entries).collect::<Result<Vec<_>, _>>()?;
        let mut template = descriptor_template::DescriptorTemplate::new(descriptors.iter())?;
        let mut headers = Vec::new();
        for field in template.fields_mut() {
            let wrong = |_| format!("`{}` is not the name of a header", field.name);
            let header = HeaderName::from_str(&field.name).map_err(wrong)?;
            if field.filters.is_empty() {
                field.filters.extend(default_filter(&header));
            }
            if !headers.contains(&header) {
                headers.push(header);
            }
        }
        Ok(Self { descriptors: template, headers })
    }
}

/// The entries of the text of one descriptor, without the space around keys and values.
fn entries(text: &str) -> Result<Vec<Entry>, String> {
    let entry = |entry: Entry| {
        let trimmed = |part: Vec<u8>| part.trim_ascii().to_owned();
        let entry = Entry { key: trimmed(entry.key), value: trimmed(entry.value) };
        if entry.key.is_empty() { Err(format!("`{text}`: a key is empty")) } else { Ok(entry) }
    };
    descriptor_text::parse(text)?.into_iter().map(entry).collect()
}

#[cfg(test)]
mod tests {
    use tollgate_counter::descriptor::escaped;

    use super::*;

    fn check(template: &str) -> ForwardAuthCheck {
        let settings = ForwardAuthSettings {
            domain: Some("d".to_owned()),
            descriptors: Some(HeaderTemplate::try_from(template.to_owned()).unwrap()),
            denied_status: 403,
            failure_status: 200,
        };
        settings.check().unwrap()
    }

    fn headers(given: &[(&str, &[u8])]) -> HeaderMap {
        let header =
            |(name, value): &(&str, &[u8])| (name.parse().unwrap(), HeaderValue::from_bytes(value).unwrap());
        given.iter().map(header).collect()
    }

    /// The descriptors of a request in their text form, or why there are none.
    fn requested(template: &str, given: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let given: Vec<_> = given.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        requested_of_bytes(template, &given)
    }

    fn requested_of_bytes(template: &str, given: &[(&str, &[u8])]) -> Result<Vec<String>, String> {
        let check = check(template);
        let message = check.request(&headers(given)).map_err(|bad| bad.to_string())?;
        let request = message.map(|message| RateLimitRequest::decode(&*message).unwrap());
        let descriptors = request.map(|request| request.descriptors).unwrap_or_default();
        let text = |descriptor: RateLimitDescriptor| {
            let entries = descriptor.entries.iter();
            let entries = entries.map(|entry| format!("{}={}", escaped(&entry.key), escaped(&entry.value)));
            entries.collect::<Vec<_>>().join(" ")
        };
        Ok(descriptors.into_iter().map(text).collect())
    }

    fn value(template: &str, header: &str, value: &str) -> String {
        requested(template, &[(header, value)]).unwrap().join(";")
    }

    #[test]
    fn check_answers_with_its_statuses() {
        let check = check("user={x-user}");
        assert_eq!((check.status(true).as_u16(), check.status(false).as_u16()), (200, 403));
        assert_eq!(check.failure.as_u16(), 200);
    }

    #[test]
    fn descriptors_have_texts_and_values_of_headers() {
        let template = r"route=shop, user={X-User} ; path=p{x-forwarded-uri}\,{x-user|lower}";
        let given = [("x-user", "Ann"), ("x-forwarded-uri", "/a,b;c=d")];
        let expected = ["route=shop user=Ann", "path=p/a,b;c=d,ann"];
        assert_eq!(requested(template, &given).unwrap(), expected);
        let names: Vec<_> = check(template).headers().iter().map(HeaderName::to_string).collect();
        assert_eq!(names, ["x-user", "x-forwarded-uri"]);
    }

    #[test]
    fn last_forwarded_address_counts_without_filter() {
        for (list, address) in [
            ("10.0.0.1", "10.0.0.1"),
            ("invented, 203.0.113.7, 10.0.0.1", "10.0.0.1"),
            ("invented,10.0.0.1:4711", "10.0.0.1"),
            ("invented, [2001:db8::1]:4711", "2001:db8::1"),
        ] {
            assert_eq!(
                value("a={X-Forwarded-For}", "x-forwarded-for", list),
                format!("a={address}"),
                "{list}"
            );
        }
        let list = "invented, 203.0.113.7, 10.0.0.1";
        for (filter, address) in [("nth-trusted:2", "203.0.113.7"), ("first", "invented"), ("whole", list)] {
            let template = format!("a={{x-forwarded-for|{filter}}}");
            assert_eq!(value(&template, "x-forwarded-for", list), format!("a={address}"));
        }
    }

    #[test]
    fn uri_counts_as_its_path_without_filter() {
        for header in ["x-forwarded-uri", "x-original-uri", "x-original-url", "x-envoy-original-path"] {
            let template = format!("p={{{header}}}");
            assert_eq!(value(&template, header, "/search?q=1"), "p=/search");
        }
        assert_eq!(value("p={x-forwarded-uri|whole}", "x-forwarded-uri", "/search?q=1"), "p=/search?q=1");
        assert_eq!(value("p={x-query}", "x-query", "/search?q=1"), "p=/search?q=1");
    }

    #[test]
    fn equal_headers_are_a_list_in_their_order() {
        let given =
            [("x-user", "bob"), ("x-forwarded-for", "a, b"), ("X-User", "eve"), ("x-forwarded-for", "c")];
        assert_eq!(requested("user={x-user}", &given).unwrap(), ["user=bob, eve"]);
        assert_eq!(requested("a={x-forwarded-for}", &given).unwrap(), ["a=c"]);
        assert_eq!(requested("a={x-forwarded-for|nth-trusted:2}", &given).unwrap(), ["a=b"]);
    }

    #[test]
    fn missing_or_empty_header_is_an_error() {
        let missing = |header| Err(format!("the header {header} is missing or empty"));
        for given in [&[][..], &[("x-user", "")], &[("x-path", "/")]] {
            assert_eq!(requested("route=shop;user={x-user}", given), missing("x-user"));
        }
        let short = [("x-forwarded-for", "10.0.0.1")];
        assert_eq!(requested("a={x-forwarded-for|nth-trusted:2}", &short), missing("x-forwarded-for"));
        // Whatever else the descriptor lacks.
        assert_eq!(requested("a={x-a|optional},b={x-b}", &[]), missing("x-b"));
        assert_eq!(requested("b={x-b},a={x-a|optional}", &[]), missing("x-b"));
    }

    #[test]
    fn descriptor_without_optional_header_is_left_out() {
        let template = "user={x-user|optional};path={x-path},user={x-user|lower|optional}";
        let none: [&str; 0] = [];
        assert_eq!(requested(template, &[("x-path", "/")]).unwrap(), none);
        let template = "user={x-user|optional};path={x-path}";
        assert_eq!(requested(template, &[("x-path", "/")]).unwrap(), ["path=/"]);
        let given = [("x-path", "/"), ("x-user", "ann")];
        assert_eq!(requested(template, &given).unwrap(), ["user=ann", "path=/"]);
    }

    #[test]
    fn header_value_beyond_utf8_is_its_bytes() {
        let template = "user={x-user|lower|optional};a={x-forwarded-for}";
        let list = ("x-forwarded-for", &b"10.0.0.1, \xe9"[..]);
        for (users, expected) in [
            (&[&b"Ann\xff"[..]][..], r"user=ann\xFF"),
            (&[&b"ann"[..], b"\xe2\x82"][..], r"user=ann, \xE2\x82"),
            (&[&br"ann\xff"[..]][..], r"user=ann\\xff"),
            (&["É%".as_bytes()][..], "user=é%"),
        ] {
            let mut given = vec![list, ("x-other", b"\xff")];
            given.extend(users.iter().map(|user| ("x-user", *user)));
            assert_eq!(requested_of_bytes(template, &given).unwrap(), [expected, r"a=\xE9"]);
        }
    }

    #[test]
    fn wrong_template_is_refused() {
        for text in [
            "",
            "user",
            "={x}",
            "user={}",
            "user={x y}",
            "user={x",
            "a={b};;",
            "a=b,",
            " ={x}",
            "a={x|upper}",
        ] {
            assert!(HeaderTemplate::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
