//! Which trace a call belongs to, as its caller says: W3C `traceparent`, or else B3 in one header or in several.

use axum::http::HeaderMap;
use opentelemetry::{
    Context,
    propagation::{Extractor, TextMapPropagator},
    trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;

/// What a caller says of the trace.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Parent {
    /// Nothing that can be understood.
    None,
    /// That there is to be none.
    Denied,
    /// The span that the call is part of, sampled or not.
    Span(SpanContext),
}

impl Parent {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        match w3c(headers) {
            Some(span) => Self::Span(span),
            None => b3(headers),
        }
    }
}

fn w3c(headers: &HeaderMap) -> Option<SpanContext> {
    let context = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
    context.has_active_span().then(|| context.span().span_context().clone())
}

/// `b3: {trace}-{span}[-{sampled}[-{parent}]]` or `b3: 0`; else the same in `x-b3-...`.
fn b3(headers: &HeaderMap) -> Parent {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(single) = text("b3") {
        let mut parts = single.split('-');
        return match (parts.next(), parts.next()) {
            (Some("0"), None) => Parent::Denied,
            (Some(trace), Some(span)) => b3_span(trace, span, parts.next()),
            (_, None) | (None, _) => Parent::None,
        };
    }
    let sampled = if text("x-b3-flags") == Some("1") { Some("d") } else { text("x-b3-sampled") };
    match (text("x-b3-traceid"), text("x-b3-spanid")) {
        (Some(trace), Some(span)) => b3_span(trace, span, sampled),
        (None, _) | (_, None) if matches!(sampled, Some("0" | "false")) => Parent::Denied,
        (None, _) | (_, None) => Parent::None,
    }
}

/// Trace ids are 32 or 16 digits. A caller that has not decided whether to sample counts as one that does not.
fn b3_span(trace: &str, span: &str, sampled: Option<&str>) -> Parent {
    let is_hex = |text: &str| text.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !matches!(trace.len(), 16 | 32) || span.len() != 16 || !is_hex(trace) || !is_hex(span) {
        return Parent::None;
    }
    let (Ok(trace), Ok(span)) = (TraceId::from_hex(trace), SpanId::from_hex(span)) else {
        return Parent::None;
    };
    let flags = TraceFlags::default().with_sampled(matches!(sampled, Some("1" | "true" | "d")));
    let span = SpanContext::new(trace, span, flags, true, TraceState::default());
    if span.is_valid() { Parent::Span(span) } else { Parent::None }
}

struct Headers<'h>(&'h HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(axum::http::HeaderName::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    fn parent(headers: &[(&'static str, &str)]) -> Parent {
        Parent::of(
            &headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect(),
        )
    }

    fn span(trace: &str, sampled: bool) -> Parent {
        let (trace, span) = (TraceId::from_hex(trace).unwrap(), SpanId::from_hex(SPAN).unwrap());
        let flags = TraceFlags::default().with_sampled(sampled);
        Parent::Span(SpanContext::new(trace, span, flags, true, TraceState::default()))
    }

    #[test]
    fn a_traceparent_names_the_span_and_whether_it_is_sampled() {
        for (flags, sampled) in [("01", true), ("00", false)] {
            assert_eq!(
                parent(&[("traceparent", &format!("00-{TRACE}-{SPAN}-{flags}"))]),
                span(TRACE, sampled)
            );
        }
    }

    #[test]
    fn one_b3_header_names_the_span_and_whether_it_is_sampled() {
        for (end, sampled) in
            [("-1", true), ("-d", true), ("-1-0000000000000007", true), ("-0", false), ("", false)]
        {
            assert_eq!(parent(&[("b3", &format!("{TRACE}-{SPAN}{end}"))]), span(TRACE, sampled), "{end}");
        }
        assert_eq!(parent(&[("b3", "0")]), Parent::Denied);
    }

    #[test]
    fn several_b3_headers_do_so_too() {
        let ids = [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN)];
        assert_eq!(parent(&[ids[0], ids[1], ("x-b3-sampled", "1")]), span(TRACE, true));
        assert_eq!(parent(&[ids[0], ids[1], ("x-b3-flags", "1")]), span(TRACE, true));
        assert_eq!(parent(&[ids[0], ids[1], ("x-b3-sampled", "0")]), span(TRACE, false));
        assert_eq!(parent(&[("x-b3-sampled", "0")]), Parent::Denied);
    }

    #[test]
    fn a_short_b3_trace_is_filled_with_zeros() {
        let short = &TRACE[16..];
        assert_eq!(parent(&[("b3", &format!("{short}-{SPAN}-1"))]), span(&format!("{:0>32}", short), true));
    }

    #[test]
    fn w3c_wins_over_b3() {
        let (w3c, b3) = (format!("00-{TRACE}-{SPAN}-01"), format!("{}-{SPAN}-0", "1".repeat(32)));
        assert_eq!(parent(&[("traceparent", &w3c), ("b3", &b3)]), span(TRACE, true));
    }

    #[test]
    fn what_cannot_be_understood_is_no_parent() {
        for b3 in
            ["", "1", "x", "d", &format!("{TRACE}-{}", "0".repeat(16)), &format!("+{}-{SPAN}-1", &TRACE[1..])]
        {
            assert_eq!(parent(&[("b3", b3)]), Parent::None, "{b3}");
        }
        assert_eq!(parent(&[("traceparent", "00-1-2-3")]), Parent::None);
        assert_eq!(parent(&[]), Parent::None);
    }
}
