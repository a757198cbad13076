"""Envoy configurations for the tests. They are JSON, which is YAML too."""

import json

from processes import ROOT

LIMIT = "envoy.filters.http.ratelimit"


def bootstrap(
    tollgates,
    upstream,
    routes,
    failure_mode_deny=False,
    filters=(),
    timeout="5s",
    tls=None,
    own_headers=True,
    access_log=None,
    manager_fields=(),
):
    """An edge proxy that calls `tollgates` (addresses) as `routes` configure and forwards requests to `upstream`.

    `tls` is a result of `upstream_tls`. With `own_headers` Envoy adds its own x-ratelimit headers;
    `access_log` is a path and a format; `manager_fields` has more fields of the connection manager.
    """
    limiter = {
        "domain": "edge",
        # Long, because these tests check decisions and not latency.
        "timeout": timeout,
        "failure_mode_deny": failure_mode_deny,
        "enable_x_ratelimit_headers": "DRAFT_VERSION_03" if own_headers else "OFF",
        "rate_limit_service": {
            "transport_api_version": "V3",
            "grpc_service": {"envoy_grpc": {"cluster_name": "tollgate"}},
        },
    }
    manager = {
        "stat_prefix": "edge",
        "use_remote_address": True,
        "http_filters": [
            *filters,
            typed(LIMIT, "extensions.filters.http.ratelimit.v3.RateLimit", limiter),
            typed("envoy.filters.http.router", "extensions.filters.http.router.v3.Router", {}),
        ],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": list(routes)}]},
    }
    manager |= dict(manager_fields)
    if access_log:
        path, line = access_log
        log = {"path": str(path), "log_format": {"text_format_source": {"inline_string": line + "\n"}}}
        kind = "extensions.access_loggers.file.v3.FileAccessLog"
        manager["access_log"] = [typed("envoy.access_loggers.file", kind, log)]
    listener = {
        "name": "edge",
        "address": socket_address("127.0.0.1:0"),
        "filter_chains": [
            {
                "filters": [
                    typed(
                        "envoy.filters.network.http_connection_manager",
                        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                        manager,
                    )
                ]
            }
        ],
    }
    return json.dumps(
        {
            "admin": {"address": socket_address("127.0.0.1:0")},
            "static_resources": {
                "listeners": [listener],
                "clusters": [tollgate_cluster(tollgates) | (tls or {}), cluster("upstream", [upstream])],
            },
        },
        indent=1,
    )


def route(prefix, *rate_limits):
    """A route with rate limits, configured per route because some of their fields are allowed only there."""
    per_route = {"@type": type_url("extensions.filters.http.ratelimit.v3.RateLimitPerRoute")}
    return {
        "match": {"prefix": prefix},
        "route": {"cluster": "upstream"},
        "typed_per_filter_config": {LIMIT: {**per_route, "rate_limits": list(rate_limits)}},
    }


def rate_limit(*actions, **more):
    return {"actions": list(actions), **more}


def generic(key, value):
    return {"generic_key": {"descriptor_key": key, "descriptor_value": value}}


def header(key):
    """The entry `key` with the value of the header `x-key`."""
    return {"request_headers": {"header_name": f"x-{key}", "descriptor_key": key}}


def typed(name, kind, config):
    return {"name": name, "typed_config": {"@type": type_url(kind), **config}}


def type_url(kind):
    return f"type.googleapis.com/envoy.{kind}"


def upstream_tls(authority, certificate=None, key=None):
    """The TLS settings of a cluster: trusted authority and client certificate (paths of PEM files)."""
    context = {"validation_context": {"trusted_ca": {"filename": str(authority)}}}
    if certificate:
        pair = {"certificate_chain": {"filename": str(certificate)}, "private_key": {"filename": str(key)}}
        context["tls_certificates"] = [pair]
    kind = "extensions.transport_sockets.tls.v3.UpstreamTlsContext"
    config = {"common_tls_context": context, "sni": "localhost"}
    return {"transport_socket": typed("envoy.transport_sockets.tls", kind, config)}


def socket_address(address):
    if address.startswith("unix:"):
        return {"pipe": {"path": address.removeprefix("unix:")}}
    host, port = address.rsplit(":", 1)
    return {"socket_address": {"address": host, "port_value": int(port)}}


def tollgate_cluster(addresses):
    # Frequent health checks, so that Envoy soon stops calling a draining instance.
    check = {"timeout": "1s", "interval": "0.1s", "unhealthy_threshold": 1, "healthy_threshold": 1}
    check |= {"no_traffic_interval": "0.1s", "unhealthy_interval": "0.1s", "grpc_health_check": {}}
    return cluster("tollgate", addresses, {"http2_protocol_options": {}}) | {"health_checks": [check]}


def cluster(name, addresses, protocol=None):
    options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    protocol = protocol or {"http_protocol_options": {}}
    http = {"@type": f"type.googleapis.com/{options}", "explicit_http_config": protocol}
    endpoints = [{"endpoint": {"address": socket_address(address)}} for address in addresses]
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {options: http},
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
    }


def deployed_quotas(tollgate):
    """deploy/envoy/envoy-rlqs.yaml with free ports, for the server at this address."""
    text = (ROOT / "deploy" / "envoy" / "envoy-rlqs.yaml").read_text()
    for old, new in [("10000", "0"), ("9901", "0"), ("8081", tollgate.rsplit(":", 1)[1])]:
        assert f"port_value: {old} " in text
        text = text.replace(f"port_value: {old} ", f"port_value: {new} ")
    return text
