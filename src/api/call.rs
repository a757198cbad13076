//! Calls of the gRPC services that the connection serves itself, and their replies.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderName};
use tollgate_counter::named;
use tollgate_wire::protobuf::{FRAME_PREFIX_BYTES, frame_prefix};

/// The path of the method with streams of requests and replies.
pub const CHECK_STREAM_PATH: &str = "/tollgate.v1.RateLimiter/CheckStream";

/// The path of decisions by headers over HTTP.
pub const CHECK_PATH: &str = "/check";

static GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// A method with one message and one reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The method of Envoy's rate limit service.
    ShouldRateLimit,
    /// A method of `tollgate.v1` that decides several requests.
    Decide(Verb),
    /// A method of `tollgate.v1` for reservations.
    Hold(HoldVerb),
    /// A method of `tollgate.v1` for operators.
    Operator(OperatorVerb),
}

/// What an operator does with counters. Each call needs the admin token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorVerb {
    /// The call replaces counters by unused ones.
    Reset,
    /// The call sets limits of keys of their own.
    SetLimits,
    /// The call reads limits of their own.
    GetLimits,
    /// The call removes limits of their own.
    ClearLimits,
    /// The call lists limits of their own.
    ListLimits,
}

/// What a call of `tollgate.v1` does with the hits of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// The call charges the hits.
    Check,
    /// The call charges nothing and reads the counters.
    Peek,
    /// The call refunds the hits.
    Refund,
}

/// What a call of `tollgate.v1` does with a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldVerb {
    /// The call makes a reservation.
    Reserve,
    /// The call ends a reservation at the hits that were used.
    Settle,
    /// The call ends a reservation of which nothing was used.
    Cancel,
}

/// How durations until reset are rounded. Always up, so that a client does not retry too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetPrecision {
    /// Whole seconds, at least one: Envoy truncates to whole seconds.
    Seconds,
    /// Whole milliseconds.
    Millis,
    /// Nanoseconds.
    Nanos,
}

named! {
    /// The API over which a call came, by its name in metrics.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum ApiKind {
        /// Envoy's rate limit service.
        Envoy = "envoy",
        /// `tollgate.v1` over gRPC.
        TollgateV1 = "tollgate.v1",
        /// JSON of Envoy's rate limit service or of `tollgate.v1`.
        Json = "json",
        /// Headers of a gateway.
        ForwardAuth = "forward_auth",
    }
}

/// A call to decide.
#[derive(Clone, Copy, Debug)]
pub struct Call<'m> {
    /// The method.
    pub method: Method,
    /// The encoded request.
    pub message: &'m [u8],
    /// Metadata of the call.
    pub metadata: Option<&'m HeaderMap>,
    /// How the reply of [`Method::ShouldRateLimit`] rounds durations.
    pub precision: ResetPrecision,
    /// The API over which the call came.
    pub api: ApiKind,
}

/// The reply to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallReply {
    /// A gRPC frame with the encoded response.
    pub frame: Vec<u8>,
    /// Whether the request passes, if the method decides one request.
    pub passes: Option<bool>,
    /// Time to wait before the reply is sent: see [`crate::api::Api::wait`].
    pub delay: Duration,
}

/// What becomes of a call.
#[derive(Debug)]
pub enum Handled<R, W> {
    /// The reply to the call.
    Ready(R),
    /// What is to be done once another replica, the shared store or a file has answered.
    Waiting(W),
}

impl ApiKind {
    /// The API of a method over gRPC.
    #[inline]
    pub const fn over_grpc(method: Method) -> Self {
        match method {
            Method::ShouldRateLimit => Self::Envoy,
            Method::Decide(_) | Method::Hold(_) | Method::Operator(_) => Self::TollgateV1,
        }
    }
}

/// All methods: each with its path in gRPC, and that of its JSON.
macro_rules! methods {
    ($($method:ident $(($($which:tt)*))? $path:literal $json_path:literal;)*) => {
        impl Method {
            /// All methods.
            pub const ALL: &[Self] = &[$(Self::$method $(($($which)*))?),*];

            /// The path of the method in gRPC.
            pub const fn path(self) -> &'static str {
                match self {
                    $(Self::$method $(($($which)*))? => $path,)*
                }
            }

            /// The path of the method in the HTTP API.
            pub const fn json_path(self) -> &'static str {
                match self {
                    $(Self::$method $(($($which)*))? => $json_path,)*
                }
            }
        }
    };
}

methods! {
    ShouldRateLimit "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" "/json";
    Decide(Verb::Check) "/tollgate.v1.RateLimiter/Check" "/v1/check";
    Decide(Verb::Peek) "/tollgate.v1.RateLimiter/Peek" "/v1/peek";
    Decide(Verb::Refund) "/tollgate.v1.RateLimiter/Refund" "/v1/refund";
    Hold(HoldVerb::Reserve) "/tollgate.v1.RateLimiter/Reserve" "/v1/reserve";
    Hold(HoldVerb::Settle) "/tollgate.v1.RateLimiter/Settle" "/v1/settle";
    Hold(HoldVerb::Cancel) "/tollgate.v1.RateLimiter/Cancel" "/v1/cancel";
    Operator(OperatorVerb::Reset) "/tollgate.v1.RateLimiter/Reset" "/v1/reset";
    Operator(OperatorVerb::SetLimits) "/tollgate.v1.RateLimiter/SetLimits" "/v1/limits/set";
    Operator(OperatorVerb::GetLimits) "/tollgate.v1.RateLimiter/GetLimits" "/v1/limits/get";
    Operator(OperatorVerb::ClearLimits) "/tollgate.v1.RateLimiter/ClearLimits" "/v1/limits/clear";
    Operator(OperatorVerb::ListLimits) "/tollgate.v1.RateLimiter/ListLimits" "/v1/limits/list";
}

impl Method {
    /// The method at a path of HTTP/2.
    #[inline]
    pub fn from_path(path: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|method| method.path() == path)
    }

    /// The full name of the method's service.
    pub fn service(self) -> &'static str {
        self.names().0
    }

    /// The name of the method.
    pub fn name(self) -> &'static str {
        self.names().1
    }

    /// The two parts of the method's path: its service and its name.
    fn names(self) -> (&'static str, &'static str) {
        self.path()[1..].split_once('/').unwrap_or_default()
    }
}

impl Call<'_> {
    /// The time that the caller waits.
    pub(super) fn timeout(self) -> Option<Duration> {
        self.metadata.and_then(timeout_from_headers)
    }
}

impl<R, W> Handled<R, W> {
    /// Changes what it holds.
    pub(super) fn map<S, V>(self, reply: impl FnOnce(R) -> S, waiting: impl FnOnce(W) -> V) -> Handled<S, V> {
        match self {
            Self::Ready(ready) => Handled::Ready(reply(ready)),
            Self::Waiting(waits) => Handled::Waiting(waiting(waits)),
        }
    }
}

impl CallReply {
    /// The reply with this response, which follows the room for its prefix.
    pub(super) fn from_frame(mut frame: Vec<u8>) -> Self {
        let prefix = frame_prefix(frame.len() - FRAME_PREFIX_BYTES);
        frame[..FRAME_PREFIX_BYTES].copy_from_slice(&prefix);
        Self { frame, passes: None, delay: Duration::ZERO }
    }

    /// The encoded response.
    pub fn message(&self) -> &[u8] {
        &self.frame[FRAME_PREFIX_BYTES..]
    }
}

/// The timeout of the caller in the header `grpc-timeout`; `None` if the header is absent or malformed.
pub fn timeout_from_headers(headers: &HeaderMap) -> Option<Duration> {
    parse_timeout(headers.get(&GRPC_TIMEOUT)?.to_str().ok()?)
}

/// Parses one to eight digits and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    const DIGITS_MAX: usize = 8;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > DIGITS_MAX || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let number = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3_600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _no_unit => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_has_up_to_eight_digits_and_a_unit() {
        for (text, expected) in [
            ("2H", Duration::from_secs(7_200)),
            ("3M", Duration::from_secs(180)),
            ("42S", Duration::from_secs(42)),
            ("250m", Duration::from_millis(250)),
            ("00000007u", Duration::from_micros(7)),
            ("99999999n", Duration::from_nanos(99_999_999)),
            ("99999999H", Duration::from_secs(99_999_999 * 3_600)),
            ("0S", Duration::ZERO),
        ] {
            assert_eq!(parse_timeout(text), Some(expected), "{text}");
        }
        for text in ["", "S", "1", "1s", "1 S", "-1S", "+1S", "1.5S", "123456789n", "1SS", "1é"] {
            assert_eq!(parse_timeout(text), None, "{text}");
        }
    }
}
