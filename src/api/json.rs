//! Converts rate limit messages by the JSON mapping of Protocol Buffers.

use std::{borrow::Cow, fmt};

use prost::Message;
use prost_reflect::{DynamicMessage, MethodDescriptor};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use tollgate_limiter::limiter::{CallSize, RequestBounds, TooLarge};
use tollgate_wire::{
    json::{POOL, message, text},
    proto::{envoy::service::ratelimit::v3::RateLimitRequest, google::rpc::Status},
};

use crate::api::{
    call::{Method, OperatorVerb},
    error::{Error, MALFORMED},
};

/// Converts the request of a method to its encoded message. The bounds are checked before anything is built. Unknown
/// fields and trailing characters are errors.
pub(super) fn request(method: Method, json: &[u8], bounds: RequestBounds) -> Result<Vec<u8>, Error> {
    let (position, size) = match method {
        Method::Decide(_) => (Position::Call, CallSize::new(bounds)),
        Method::Operator(OperatorVerb::SetLimits) => (Position::Call, CallSize::for_limits(bounds)),
        Method::ShouldRateLimit | Method::Hold(_) | Method::Operator(_) => {
            (Position::Request, CallSize::new(bounds))
        }
    };
    check_bounds(position, json, size)?;
    let mut reader = serde_json::Deserializer::from_slice(json);
    let read = DynamicMessage::deserialize(descriptor(method).input(), &mut reader);
    match read.and_then(|message| reader.end().map(|()| message)) {
        Ok(message) => Ok(message.encode_to_vec()),
        Err(error) => {
            let error = Error::invalid(MALFORMED, error.to_string());
            Err(match wrong_field(method, json) {
                Some(field) => error.at(field),
                None => error,
            })
        }
    }
}

/// The path of the value that is wrong. Requests without a fault do not pay for it.
fn wrong_field(method: Method, json: &[u8]) -> Option<String> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(&mut reader, &mut track);
    DynamicMessage::deserialize(descriptor(method).input(), tracked).err()?;
    // Where a key should begin, the last part is unknown.
    let path = track.path().to_string();
    let path = path.trim_end_matches(['?', '.']);
    (!path.is_empty()).then(|| path.to_owned())
}

/// Converts a request to JSON: lowerCamelCase names, enumerations by name, default values omitted.
pub fn request_text(request: &RateLimitRequest) -> Result<String, serde_json::Error> {
    text(descriptor(Method::ShouldRateLimit).input(), &request.encode_to_vec())
}

/// Converts the response of a method to JSON: lowerCamelCase names, enumerations by name, default values omitted.
pub fn response(method: Method, encoded: &[u8]) -> Result<String, serde_json::Error> {
    text(descriptor(method).output(), encoded)
}

/// Converts an error to JSON.
pub(super) fn error(error: &Status) -> Result<String, serde_json::Error> {
    text(message("google.rpc.Status"), &error.encode_to_vec())
}

fn descriptor(method: Method) -> MethodDescriptor {
    let service = POOL.get_service_by_name(method.service()).expect("the build has compiled it");
    let found = service.methods().find(|each| each.name() == method.name());
    found.expect("the service has every method")
}

/// Counts requests, descriptors and entries. Malformed text passes if the part before the error is within the bounds: the
/// parser builds that part and fails at the same byte.
fn check_bounds(position: Position, json: &[u8], size: CallSize) -> Result<(), Error> {
    let mut count = Count { size, too_large: None };
    let mut reader = serde_json::Deserializer::from_slice(json);
    // The parser reports syntax errors.
    let _ = BoundsCheck { count: &mut count, position }.deserialize(&mut reader);
    let Some(error) = count.too_large else { return Ok(()) };
    let request = count.size.request_index().filter(|_| error.is_of_request());
    Err(match request {
        Some(request) => Error::from(error).at(format_args!("requests[{request}]")),
        None => error.into(),
    })
}

/// Requests, descriptors and entries counted so far.
struct Count {
    size: CallSize,
    too_large: Option<TooLarge>,
}

/// Visits a value without building it.
struct BoundsCheck<'c> {
    count: &'c mut Count,
    position: Position,
}

/// The kind of the visited value.
#[derive(Clone, Copy)]
enum Position {
    Call,
    Requests,
    /// A request of a call that has several, or a limit to set.
    RequestOfCall,
    /// The limit in an element that sets one.
    OwnLimit,
    Request,
    Descriptors,
    Descriptor,
    Entries,
    Entry,
}

/// The name of a field, which is copied only if it has escapes.
#[derive(Deserialize)]
struct FieldName<'n>(#[serde(borrow)] Cow<'n, str>);

impl Count {
    fn record<E: serde::de::Error>(&mut self, counted: Result<(), TooLarge>) -> Result<(), E> {
        counted.map_err(|error| {
            self.too_large = Some(error);
            E::custom("too large")
        })
    }
}

impl<'de> DeserializeSeed<'de> for BoundsCheck<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, value: D) -> Result<(), D::Error> {
        let counted = match self.position {
            Position::Call
            | Position::Requests
            | Position::Request
            | Position::OwnLimit
            | Position::Descriptors
            | Position::Entries => Ok(()),
            Position::RequestOfCall => self.count.size.request(),
            Position::Descriptor => self.count.size.descriptor(),
            Position::Entry => self.count.size.entry(),
        };
        self.count.record(counted)?;
        value.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for BoundsCheck<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a part of a request")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(FieldName(name)) = map.next_key()? {
            let position = match (self.position, &*name) {
                (Position::Call, "requests" | "limits") => Position::Requests,
                (Position::Request | Position::RequestOfCall, "descriptors") => Position::Descriptors,
                (Position::RequestOfCall, "limit") => Position::OwnLimit,
                (Position::OwnLimit, "key") => Position::Descriptor,
                (Position::Descriptor, "entries") | (Position::Request, "prefix") => Position::Entries,
                _another => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            map.next_value_seed(BoundsCheck { count: &mut *self.count, position })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let position = match self.position {
            Position::Requests => Position::RequestOfCall,
            Position::Descriptors => Position::Descriptor,
            Position::Entries => Position::Entry,
            // The parser rejects a list here.
            Position::Call
            | Position::RequestOfCall
            | Position::OwnLimit
            | Position::Request
            | Position::Descriptor
            | Position::Entry => {
                return Err(A::Error::custom("a list"));
            }
        };
        while list.next_element_seed(BoundsCheck { count: &mut *self.count, position })?.is_some() {}
        Ok(())
    }

    /// `null` is an absent value.
    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_wire::proto::tollgate::v1;
    use tonic::Code;

    use crate::api::{call::Verb, service::ApiSettings};

    fn bounds() -> RequestBounds {
        RequestBounds { descriptors: 2, entries: 3, ..ApiSettings::default().bounds() }
    }

    fn read(json: &str) -> Result<(), Error> {
        request(Method::ShouldRateLimit, json.as_bytes(), bounds()).map(drop)
    }

    #[test]
    fn request_beyond_bounds_is_rejected() {
        let most = r#"{"entries": [{}, {"key": "a"}, {"value": "]}"}]}"#;
        let descriptors = TooLarge::Descriptors { most: 2 };
        let entries = |descriptor| TooLarge::Entries { descriptor, most: 3 };
        for (json, expected) in [
            (format!(r#"{{"descriptors": [{most}, {most}]}}"#), Ok(())),
            (r#"{"descriptors": null}"#.to_owned(), Ok(())),
            (r#"{"descriptors": [{"entries": null}, {}]}"#.to_owned(), Ok(())),
            (r#"{"descriptors": [{}, {}, {}]}"#.to_owned(), Err(descriptors)),
            (r#"{"\u0064escriptors": [{}, {}, {}]}"#.to_owned(), Err(descriptors)),
            (r#"{"descriptors": [{}, {}], "descriptors": [{}]}"#.to_owned(), Err(descriptors)),
            (r#"{"descriptors": [{}, {"entries": [{}, {}, {}, {}]}]}"#.to_owned(), Err(entries(1))),
            (r#"{"descriptors": [{"entries": [{}, {}], "entries": [{}, {}]}]}"#.to_owned(), Err(entries(0))),
            // The bounds are exceeded before the syntax error.
            (r#"{"descriptors": [{}, {}, {}, 5"#.to_owned(), Err(descriptors)),
            (r#"{"domain": 1e5, "descriptors": [{}, {}, {}]}"#.to_owned(), Err(descriptors)),
        ] {
            assert_eq!(read(&json), expected.map_err(Error::from), "{json}");
        }
    }

    #[test]
    fn malformed_request_is_a_syntax_error() {
        for json in [
            "",
            "[[], [], []]",
            r#"{"descriptors": 3}"#,
            r#"{"descriptors": {"a": 1}}"#,
            r#"{"descriptors": [[], [], []]}"#,
            r#"{"descriptors": [1e999, {}, {}]}"#,
            r#"{"entries": [{}, {}, {}, {}]}"#,
            r#"{"descriptors": [{"limit": {"entries": [{}, {}, {}, {}]}}]}"#,
        ] {
            assert_eq!(read(json).unwrap_err().reason, MALFORMED, "{json}");
        }
    }

    #[test]
    fn wrong_value_is_named_by_its_field() {
        for (json, error) in [
            (r#"{"domain": 5}"#, "domain: invalid type: integer `5`, expected a string at line 1 column 12"),
            (
                r#"{"descriptors": [{}, {"entries": [{"key": "a", "value": false}]}]}"#,
                "descriptors[1].entries[0].value: invalid type: boolean `false`, expected a string at line 1 column 61",
            ),
            (r#"{"hitsAddend": -1}"#, "hitsAddend: out of range integral type conversion"),
            (r#"{"descriptors": [{"entry": []}]}"#, "descriptors[0]"),
            (r#"{"descriptor": []}"#, "unrecognized field name 'descriptor'"),
            ("{", "EOF while parsing"),
        ] {
            let found = read(json).unwrap_err().to_string();
            assert!(found.starts_with(error), "{json}: {found}");
        }
    }

    #[test]
    fn call_and_response_are_the_same_after_json() {
        let method = Method::Decide(Verb::Check);
        let descriptor = v1::Descriptor {
            entries: vec![v1::Entry { key: "user".into(), value: "\u{e4}\"".into() }],
            limit: Some(v1::Limit { requests_per_unit: u32::MAX, unit: 7 }),
            hits: Some(0),
            on_expiry: Some(1),
        };
        let request = v1::Request {
            domain: "shop".into(),
            descriptors: vec![descriptor],
            hits: u64::MAX,
            id: "a".into(),
            request_id: "b".into(),
        };
        let call = v1::CheckRequest { requests: vec![request], mode: 1 };
        let json = text(super::descriptor(method).input(), &call.encode_to_vec()).unwrap();
        let read = super::request(method, json.as_bytes(), bounds()).unwrap();
        assert_eq!(v1::CheckRequest::decode(&*read).unwrap(), call);

        let time = |nanos| Some(prost_types::Duration { seconds: 1 << 30, nanos });
        let limit = v1::LimitStatus {
            descriptor_index: 1,
            rule: "shop.user".into(),
            requests_per_unit: u64::MAX,
            unit: 1,
            remaining: 1,
            reset_after: time(1),
            retry_after: time(999_999_999),
            refused: true,
            refused_in_shadow: true,
            refused_by_candidate: true,
            degraded: true,
        };
        let answer = v1::Answer {
            id: "a".into(),
            verdict: 2,
            delay: time(0),
            retry_after: time(1_000),
            limits: vec![limit],
            degraded: true,
            error: Some(Error::new(Code::Unavailable, "NO_RULES", "no rules").details()),
            never_because: "larger than the limit".into(),
        };
        let sent = v1::CheckResponse { answers: vec![answer] };
        let json = response(method, &sent.encode_to_vec()).unwrap();
        let mut reader = serde_json::Deserializer::from_str(&json);
        let read = DynamicMessage::deserialize(super::descriptor(method).output(), &mut reader).unwrap();
        assert_eq!(v1::CheckResponse::decode(&*read.encode_to_vec()).unwrap(), sent);
    }
}
