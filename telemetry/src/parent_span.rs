//! The parent span of a call from its headers: W3C `traceparent`, or else B3 in one or several headers.

use axum::http::HeaderMap;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// A longer `tracestate` is left out of spans, which wait in a queue. All are to pass on so much of it.
const STATE_BYTES_MAX: usize = 512;

/// The trace context of a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ParentSpan {
    /// The call has no trace context, or invalid headers.
    None,
    /// The caller forbids tracing the call.
    Denied,
    /// The parent span, sampled or not.
    Span(SpanContext),
}

impl ParentSpan {
    pub(super) fn from_headers(headers: &HeaderMap) -> Self {
        w3c(headers).map_or_else(|| b3(headers), Self::Span)
    }
}

/// `traceparent: {version}-{trace}-{span}-{flags}`; versions after 00 may append fields. Not parsed by the
/// OpenTelemetry library, which accepts shorter numbers and signs.
fn w3c(headers: &HeaderMap) -> Option<SpanContext> {
    let parent = text(headers, "traceparent")?;
    let mut parts = parent.split('-');
    let [version, trace, span, flags] = [parts.next()?, parts.next()?, parts.next()?, parts.next()?];
    let is_version = is_hex(version, 2) && version != "ff" && (version != "00" || parts.next().is_none());
    if !is_version
        || !is_hex(flags, 2)
        || trace.len() != 32
        || parent.contains(|c: char| c.is_ascii_uppercase())
    {
        return None;
    }
    let sampled = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
    let state = text(headers, "tracestate").filter(|state| state.len() <= STATE_BYTES_MAX);
    let state = state.and_then(|state| state.parse().ok());
    context(trace, span, sampled, state.unwrap_or_default())
}

/// `b3: {trace}-{span}[-{sampled}[-{parent}]]` or `b3: 0`; else the same fields in `x-b3-...`.
fn b3(headers: &HeaderMap) -> ParentSpan {
    if let Some(single) = text(headers, "b3") {
        let mut parts = single.split('-');
        return match (parts.next(), parts.next()) {
            (Some("0"), None) => ParentSpan::Denied,
            (Some(trace), Some(span)) => b3_span(trace, span, parts.next()),
            (_, None) | (None, _) => ParentSpan::None,
        };
    }
    let debug = text(headers, "x-b3-flags").filter(|flags| *flags == "1").map(|_| "d");
    let sampled = debug.or_else(|| text(headers, "x-b3-sampled"));
    match (text(headers, "x-b3-traceid"), text(headers, "x-b3-spanid")) {
        (Some(trace), Some(span)) => b3_span(trace, span, sampled),
        (None, _) | (_, None) if matches!(sampled, Some("0" | "false")) => ParentSpan::Denied,
        (None, _) | (_, None) => ParentSpan::None,
    }
}

/// A deferred sampling decision counts as not sampled.
fn b3_span(trace: &str, span: &str, sampled: Option<&str>) -> ParentSpan {
    let sampled = matches!(sampled, Some("1" | "true" | "d"));
    context(trace, span, sampled, TraceState::default()).map_or(ParentSpan::None, ParentSpan::Span)
}

/// A trace id of 32 digits, or of 16 as B3 allows, and a span id of 16 digits.
fn context(trace: &str, span: &str, sampled: bool, state: TraceState) -> Option<SpanContext> {
    if !(is_hex(trace, 32) || is_hex(trace, 16)) || !is_hex(span, 16) {
        return None;
    }
    let flags = TraceFlags::default().with_sampled(sampled);
    let trace = TraceId::from_hex(trace).ok()?;
    let span = SpanId::from_hex(span).ok()?;
    Some(SpanContext::new(trace, span, flags, true, state)).filter(SpanContext::is_valid)
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|digit| digit.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn parent(headers: &[(&'static str, &str)]) -> ParentSpan {
        ParentSpan::from_headers(
            &headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect(),
        )
    }

    fn span(trace: &str, sampled: bool) -> ParentSpan {
        let trace = TraceId::from_hex(trace).unwrap();
        let span = SpanId::from_hex(SPAN).unwrap();
        let flags = TraceFlags::default().with_sampled(sampled);
        ParentSpan::Span(SpanContext::new(trace, span, flags, true, TraceState::default()))
    }

    #[test]
    fn traceparent_yields_span_and_sampling() {
        for (flags, sampled) in [("01", true), ("00", false)] {
            assert_eq!(
                parent(&[("traceparent", &format!("00-{TRACE}-{SPAN}-{flags}"))]),
                span(TRACE, sampled)
            );
        }
    }

    #[test]
    fn span_has_the_trace_state_unless_it_is_long() {
        let traceparent = format!("00-{TRACE}-{SPAN}-01");
        let value = "x".repeat(200);
        for (bytes, is_kept) in [(104, true), (105, false)] {
            let state = format!("a={value},b={value},c={}", "x".repeat(bytes));
            let given = [("traceparent", traceparent.as_str()), ("tracestate", state.as_str())];
            let ParentSpan::Span(context) = parent(&given) else { panic!("no span") };
            assert_eq!(context.trace_state().header().len(), if is_kept { state.len() } else { 0 });
        }
    }

    #[test]
    fn single_b3_header_yields_span_and_sampling() {
        for (end, sampled) in
            [("-1", true), ("-d", true), ("-1-0000000000000007", true), ("-0", false), ("", false)]
        {
            assert_eq!(parent(&[("b3", &format!("{TRACE}-{SPAN}{end}"))]), span(TRACE, sampled), "{end}");
        }
        assert_eq!(parent(&[("b3", "0")]), ParentSpan::Denied);
    }

    #[test]
    fn several_b3_headers_yield_span_and_sampling() {
        let ids = [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN)];
        assert_eq!(parent(&[ids[0], ids[1], ("x-b3-sampled", "1")]), span(TRACE, true));
        assert_eq!(parent(&[ids[0], ids[1], ("x-b3-flags", "1")]), span(TRACE, true));
        assert_eq!(parent(&[ids[0], ids[1], ("x-b3-sampled", "0")]), span(TRACE, false));
        assert_eq!(parent(&[("x-b3-sampled", "0")]), ParentSpan::Denied);
    }

    #[test]
    fn short_b3_trace_id_is_padded_with_zeros() {
        let short = &TRACE[16..];
        assert_eq!(parent(&[("b3", &format!("{short}-{SPAN}-1"))]), span(&format!("{:0>32}", short), true));
    }

    #[test]
    fn w3c_takes_precedence_over_b3() {
        let (w3c, b3) = (format!("00-{TRACE}-{SPAN}-01"), format!("{}-{SPAN}-0", "1".repeat(32)));
        assert_eq!(parent(&[("traceparent", &w3c), ("b3", &b3)]), span(TRACE, true));
    }

    #[test]
    fn invalid_headers_yield_no_parent() {
        for b3 in
            ["", "1", "x", "d", &format!("{TRACE}-{}", "0".repeat(16)), &format!("+{}-{SPAN}-1", &TRACE[1..])]
        {
            assert_eq!(parent(&[("b3", b3)]), ParentSpan::None, "{b3}");
        }
        for traceparent in [
            "00-1-2-3",
            &format!("00-{TRACE}-{SPAN}"),
            &format!("00-{TRACE}-{SPAN}-01-more"),
            &format!("ff-{TRACE}-{SPAN}-01"),
            &format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            &format!("00-{}-{SPAN}-01", &TRACE[16..]),
            &format!("00-{}-{SPAN}-01", "0".repeat(32)),
            &format!("00-{TRACE}-{SPAN}-+1"),
        ] {
            assert_eq!(parent(&[("traceparent", traceparent)]), ParentSpan::None, "{traceparent}");
        }
        assert_eq!(parent(&[("traceparent", &format!("cc-{TRACE}-{SPAN}-01-more"))]), span(TRACE, true));
        assert_eq!(parent(&[]), ParentSpan::None);
    }
}
