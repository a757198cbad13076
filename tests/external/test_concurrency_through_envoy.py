"""Places for streams in flight behind a real Envoy: taken at the start of a stream, freed at its end."""

import contextlib
import http.client
import json
import threading

import pytest

from bootstraps import bootstrap, generic, rate_limit, route, typed
from processes import Echo, eventually

pytestmark = pytest.mark.extended

PLACES = 2
RULES = f"""
    domain: edge
    on_denied: charge_none
    descriptors:
      - key: in_flight
        value: api
        rate_limit: {{algorithm: concurrency, max_in_flight: {PLACES}, hold_max: 1h}}
"""
IN_FLIGHT = ("in_flight", "api")


class Slow(Echo):
    """An upstream that answers `/slow` when it is told to, and fails the first attempt of `/retried`."""

    def __init__(self):
        super().__init__()
        self.finish = threading.Event()
        plain, attempts, upstream = self.server.RequestHandlerClass, [], self

        class Handler(plain):
            def do_GET(self):
                if self.path == "/retried":
                    attempts.append(self.path)
                    if len(attempts) == 1:
                        self.send_response(503)
                        self.send_header("content-length", "0")
                        self.end_headers()
                        return
                if self.path == "/slow":
                    upstream.requests.append(self.path)
                    upstream.finish.wait(60)
                with contextlib.suppress(BrokenPipeError):  # Envoy resets some streams.
                    super().do_GET()

        self.server.RequestHandlerClass = Handler
        self.attempts = attempts


def admitted_only(key, value):
    """The entry `key`, which is missing if no upstream was asked: then Envoy sends no descriptor."""
    config = {"descriptor_key": key, "text": f'upstream.address != "" ? "{value}" : "{value}"'}
    kind = "extensions.rate_limit_descriptors.expr.v3.Descriptor"
    return {"extension": typed("envoy.rate_limit_descriptors.expr", kind, config)}


@pytest.fixture
def slow(cleanup):
    upstream = Slow()
    cleanup.callback(upstream.stop)
    cleanup.callback(upstream.finish.set)
    return upstream


@pytest.fixture
def start(rule_file, start_tollgate, start_envoy, slow):
    """A running Tollgate and a running Envoy, which takes a place for each stream and frees it by the entry `free`."""

    def started(free, without_upstream=False):
        hits = {"number": 1, "is_negative_hits": True}
        take, free = rate_limit(generic(*IN_FLIGHT)), rate_limit(free, hits_addend=hits, apply_on_stream_done=True)
        limited = route("/", take, free)
        limited["route"]["retry_policy"] = {"retry_on": "5xx", "num_retries": 2}
        tollgate = start_tollgate(rule_file(RULES))
        config = json.loads(bootstrap([tollgate.grpc], slow.address, [limited]))
        if without_upstream:
            clusters = config["static_resources"]["clusters"]
            upstream = next(cluster for cluster in clusters if cluster["name"] == "upstream")
            upstream["load_assignment"]["endpoints"] = []
        return tollgate, start_envoy(json.dumps(config))

    return started


@pytest.fixture
def edge(start):
    return start(admitted_only(*IN_FLIGHT))


def open_stream(envoy, headers):
    """A request that is not answered yet."""
    connection = http.client.HTTPConnection(*envoy.address.rsplit(":", 1), timeout=60)
    connection.request("GET", "/slow", headers=headers)
    return connection


def occupy(envoy, slow, count, headers=None):
    """Streams that the upstream has received and not answered."""
    already = slow.requests.count("/slow")
    streams = [open_stream(envoy, headers or {}) for _ in range(count)]
    eventually(f"{count} streams reach the upstream", lambda: slow.requests.count("/slow") == already + count)
    return streams


def test_finished_streams_free_their_places(edge, slow):
    tollgate, envoy = edge
    assert envoy.get("/").code == 200
    tollgate.await_remaining(PLACES, IN_FLIGHT)

    streams = occupy(envoy, slow, PLACES)
    assert tollgate.remaining(IN_FLIGHT) == 0
    slow.finish.set()

    assert [stream.getresponse().status for stream in streams] == [200] * PLACES
    tollgate.await_remaining(PLACES, IN_FLIGHT)


def test_refused_streams_free_no_place_of_others(edge, slow):
    tollgate, envoy = edge
    streams = occupy(envoy, slow, PLACES)

    assert envoy.codes(5) == [429] * 5
    # A place that a refused stream had freed would be taken here.
    assert envoy.codes(5) == [429] * 5
    assert tollgate.remaining(IN_FLIGHT) == 0

    slow.finish.set()
    assert [stream.getresponse().status for stream in streams] == [200] * PLACES
    tollgate.await_remaining(PLACES, IN_FLIGHT)


def test_reset_stream_frees_its_place(edge, slow):
    tollgate, envoy = edge
    kept, reset = occupy(envoy, slow, PLACES)

    reset.close()

    tollgate.await_remaining(1, IN_FLIGHT)
    slow.finish.set()
    assert kept.getresponse().status == 200
    tollgate.await_remaining(PLACES, IN_FLIGHT)


def test_retried_stream_frees_one_place(edge, slow):
    tollgate, envoy = edge
    (kept,) = occupy(envoy, slow, 1)

    assert envoy.get("/retried").code == 200

    assert len(slow.attempts) == 2, "Envoy has tried twice"
    tollgate.await_remaining(1, IN_FLIGHT)
    assert envoy.codes(3) == [200] * 3
    tollgate.await_remaining(1, IN_FLIGHT)
    slow.finish.set()
    assert kept.getresponse().status == 200
    tollgate.await_remaining(PLACES, IN_FLIGHT)


def test_stream_without_upstream_keeps_its_place(start):
    tollgate, envoy = start(admitted_only(*IN_FLIGHT), without_upstream=True)

    assert envoy.codes(PLACES + 2) == [503] * PLACES + [429] * 2

    assert tollgate.remaining(IN_FLIGHT) == 0


def test_unconditional_release_of_refused_streams_frees_places_of_others(start, slow):
    """Why the release needs an upstream."""
    tollgate, envoy = start(generic(*IN_FLIGHT))
    streams = occupy(envoy, slow, PLACES)

    assert envoy.get().code == 429

    tollgate.await_remaining(1, IN_FLIGHT)
    slow.finish.set()
    assert [stream.getresponse().status for stream in streams] == [200] * PLACES
