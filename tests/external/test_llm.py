"""docs/llm.md behind a real Envoy, and with rules of a control plane."""

import http.server
import json
import re

import pytest
import yaml

from bootstraps import bootstrap, route
from control_plane import limit, needs_control_plane
from processes import Echo, ROOT, eventually
from test_concurrency_through_envoy import Slow, occupy
from test_envoy_gateway import chain

PAGE = (ROOT / "docs" / "llm.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
CALL = {"x_tenant": "acme", "x_model": "large"}
MONTH, PLACES = 20_000_000, 4


def block(start):
    """The first example of the page that begins so."""
    return next(one for one in BLOCKS if one.startswith(start))


def counter(name):
    return ("tenant", "acme"), ("model", "large"), ("limit", name)


@pytest.fixture
def upstream(cleanup):
    upstream = Slow()
    cleanup.callback(upstream.stop)
    cleanup.callback(upstream.finish.set)
    return upstream


@pytest.fixture
def edge(rule_file, start_tollgate, start_envoy, upstream):
    """Tollgate with the rules of the page, and Envoy with its descriptors."""
    # The domain that the Envoy of the tests names.
    tollgate = start_tollgate(rule_file(block("domain: models").replace("domain: models", "domain: edge")))
    limits = yaml.safe_load(block("rate_limits:"))["rate_limits"]
    return tollgate, start_envoy(bootstrap([tollgate.grpc], upstream.address, [route("/", *limits)]))


def test_envoy_charges_tokens_when_the_stream_ends(edge):
    tollgate, envoy = edge

    assert envoy.get(x_tokens="1250", **CALL).code == 200

    tollgate.await_remaining(MONTH - 1250, *counter("month"))
    tollgate.await_remaining(PLACES, *counter("in_flight"))


def test_envoy_asks_no_model_for_a_tenant_without_tokens(edge, upstream):
    tollgate, envoy = edge
    assert envoy.get(x_tokens=str(MONTH + 1), **CALL).code == 200
    tollgate.await_remaining(0, *counter("month"))

    assert envoy.get(x_tokens="1", **CALL).code == 429

    assert len(upstream.requests) == 1
    tollgate.await_remaining(PLACES, *counter("in_flight"))


def test_envoy_refuses_calls_beyond_the_places(edge, upstream):
    tollgate, envoy = edge
    streams = occupy(envoy, upstream, PLACES, {"x-tenant": "acme", "x-model": "large"})

    assert envoy.codes(2, x_tokens="1", **CALL) == [429] * 2

    upstream.finish.set()
    assert [stream.getresponse().status for stream in streams] == [200] * PLACES
    tollgate.await_remaining(PLACES, *counter("in_flight"))


class Model(Echo):
    """An upstream that answers like a model that has used 1,200 and 350 tokens: as JSON, or as a stream of events."""

    USAGE = {"prompt_tokens": 1200, "completion_tokens": 350, "total_tokens": 1550}

    def __init__(self):
        super().__init__()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                if self.path == "/stream":
                    choice = {"index": 0, "delta": {"content": "Hello"}, "finish_reason": None}
                    chunk = {"id": "1", "object": "chat.completion.chunk", "model": "large"}
                    chunks = [chunk | {"choices": [choice]}, chunk | {"choices": [], "usage": Model.USAGE}]
                    lines = [*map(json.dumps, chunks), "[DONE]"]
                    kind, body = "text/event-stream", "".join(f"data: {line}\n\n" for line in lines)
                else:
                    message = {"role": "assistant", "content": "Hello"}
                    choice = {"index": 0, "message": message, "finish_reason": "stop"}
                    answer = {"id": "1", "object": "chat.completion", "model": "large", "choices": [choice]}
                    kind, body = "application/json", json.dumps(answer | {"usage": Model.USAGE})
                self.send_response(200)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_):
                pass

        self.server.RequestHandlerClass = Handler


@pytest.mark.parametrize("path", ["/json", "/stream"])
def test_envoy_counts_tokens_of_the_answer_by_itself(path, rule_file, start_tollgate, start_envoy, cleanup):
    model = Model()
    cleanup.callback(model.stop)
    number, header = re.search(r"`('%CEL[^`]*)` in place of `([^`]*)`", PAGE).groups()
    filters = yaml.safe_load(block("http_filters:"))["http_filters"]
    limits = yaml.safe_load(block("rate_limits:").replace(header, number))["rate_limits"]
    tollgate = start_tollgate(rule_file(block("domain: models").replace("domain: models", "domain: edge")))
    envoy = start_envoy(bootstrap([tollgate.grpc], model.address, [route("/", *limits)], filters=filters))

    assert envoy.get(path, **CALL).code == 200

    tollgate.await_remaining(MONTH - 1550, *counter("month"))
    tollgate.await_remaining(PLACES, *counter("in_flight"))


@pytest.mark.extended
@needs_control_plane
def test_overlay_of_page_makes_a_month_one_of_the_calendar(start_control_plane, start_tollgate, tmp_path):
    overlay = tmp_path / "overlay.yaml"
    overlay.write_text(block("overlay:"))
    control_plane = start_control_plane()
    flags = ["--rules-source", "xds", "--rules-xds-url", f"http://{control_plane.address}"]
    flags += ["--rules-xds-node-id", "envoy-ratelimit", "--rules-overlay", overlay]
    tollgate = start_tollgate(None, ready=False, flags=flags)
    path = "httproute/default/models/rule/0/match/0/models_example_com"
    leaf = {"key": "rule-0-match-0", "value": "rule-0-match-0", **limit(10, "MONTH")}
    control_plane.serve("1", chain("default/eg/http", leaf, path))
    eventually("the rules are active", tollgate.is_ready)

    key = f"{path}={path},rule-0-match-0=rule-0-match-0"
    explained = tollgate.call(tollgate.admin, f"/explain?domain=default/eg/http&key={key}").json()
    (shown,) = explained["descriptors"]
    assert shown["rule"]["overlay"].startswith(str(overlay))
    assert shown["limit"].startswith("10 per month, ") and "calendar: {timezone: UTC}" in shown["limit"]
    assert not tollgate.rules()["warnings"]
