//! The destination of traces from OpenTelemetry's environment variables.

use tollgate_counter::printable;
use tollgate_telemetry::traces;

/// The variables for the endpoint of the collector, the more specific one first.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
const CERTIFICATES: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"];
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];

/// `None` without an endpoint, or if traces are disabled. An error names the variable.
pub(super) fn traces(environment: &[(String, String)]) -> Result<Option<traces::TraceSettings>, String> {
    // OpenTelemetry treats an empty variable as unset.
    let value = |name: &str| {
        let found = environment.iter().find(|(variable, value)| variable == name && !value.is_empty());
        found.map(|(_, value)| value.as_str())
    };
    let first = |names: [&'static str; 2]| names.into_iter().find_map(|name| Some((name, value(name)?)));
    let is_off = value("OTEL_SDK_DISABLED").is_some_and(|off| off.eq_ignore_ascii_case("true"))
        || value("OTEL_TRACES_EXPORTER") == Some("none");
    let Some((variable, endpoint)) = first(ENDPOINTS).filter(|_| !is_off) else { return Ok(None) };
    if let Some((variable, protocol)) = first(PROTOCOLS).filter(|(_, protocol)| *protocol != "grpc") {
        return Err(format!("{variable}: `{protocol}` is not allowed; grpc is"));
    }
    let is_web = ["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme));
    let is_allowed = is_web && endpoint.parse::<axum::http::Uri>().is_ok();
    if !is_allowed {
        let shown = printable::without_login(endpoint);
        return Err(format!(
            "{variable}: `{shown}` is not allowed; http:// or https:// with a host and a port is, as in http://127.0.0.1:4317"
        ));
    }
    let certificate = first(CERTIFICATES).map(|(_, path)| path.into());
    Ok(Some(traces::TraceSettings { endpoint: endpoint.to_owned(), certificate }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load_problems(variables: &[(&str, &str)]) -> Result<Option<String>, String> {
        let owned: Vec<_> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        traces(&owned).map(|settings| settings.map(|settings| settings.endpoint))
    }

    #[test]
    fn no_traces_without_endpoint_or_when_disabled() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");
        assert_eq!(
            load_problems(&[("OTEL_SERVICE_NAME", "x"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")]),
            Ok(None)
        );
        assert_eq!(load_problems(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "")]), Ok(None));
        assert_eq!(load_problems(&[endpoint, ("OTEL_SDK_DISABLED", "true")]), Ok(None));
        assert_eq!(load_problems(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")]), Ok(None));
    }

    #[test]
    fn endpoint_of_traces_takes_precedence() {
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all:4317");
        let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4317");
        assert_eq!(load_problems(&[all]), Ok(Some(all.1.to_owned())));
        assert_eq!(
            load_problems(&[all, traces, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]),
            Ok(Some(traces.1.to_owned()))
        );
    }

    #[test]
    fn unsupported_protocol_and_endpoint_are_refused() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318");
        let protocol = ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf");
        assert_eq!(
            load_problems(&[endpoint, protocol]),
            Err("OTEL_EXPORTER_OTLP_PROTOCOL: `http/protobuf` is not allowed; grpc is".to_owned())
        );
        for wrong in ["ftp://collector:4317", "collector:4317", "http://", "http://a b"] {
            let error = load_problems(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", wrong)]).unwrap_err();
            assert!(error.starts_with(&format!("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: `{wrong}`")), "{error}");
        }
    }
}
