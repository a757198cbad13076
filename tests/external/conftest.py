"""What the tests share: each gets programs of its own, and they are gone when it is over."""

import contextlib
import itertools
import socket
import textwrap

import pytest

import manifests
import network
import processes
from cluster import RULES, Cluster
from rls import Callers


@pytest.fixture(scope="session", autouse=True)
def programs_are_there():
    assert processes.TOLLGATE.exists(), f"{processes.TOLLGATE} is missing: build it, or set TOLLGATE to its path"


@pytest.fixture
def ends():
    """Ends what a test started, last first."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def rule_file(tmp_path):
    """Writes a rule file and returns its path."""
    path = tmp_path / "rules.yaml"

    def write(text):
        path.write_text(textwrap.dedent(text))
        return path

    return write


@pytest.fixture
def start_tollgate(ends, tmp_path):
    numbers = itertools.count(1)

    def start(rules, ready=True, **options):
        tollgate = processes.Tollgate(rules, tmp_path / f"tollgate-{next(numbers)}.log", **options)
        ends.callback(tollgate.stop)
        tollgate.await_listening()
        if ready:
            tollgate.await_ready()
        return tollgate

    return start


@pytest.fixture
def nobody():
    """An address that refuses connections: bound, so that nobody else can take it, but not listening."""
    with socket.socket() as taken:
        taken.bind((processes.LOOPBACK, 0))
        yield f"{processes.LOOPBACK}:{taken.getsockname()[1]}"


@pytest.fixture
def silence():
    """An address that takes connections and never says anything."""
    with socket.create_server((processes.LOOPBACK, 0)) as listening:
        yield f"{processes.LOOPBACK}:{listening.getsockname()[1]}"


@pytest.fixture
def callers(ends):
    """Asks over gRPC."""
    callers = Callers()
    ends.callback(callers.stop)
    return callers


@pytest.fixture
def make_cluster(ends, tmp_path, rule_file):
    """A cluster that has no replicas yet."""
    return lambda rules=RULES, **options: Cluster(ends, tmp_path, rule_file(rules), **options)


@pytest.fixture
def start_cluster(make_cluster):
    """A cluster of so many replicas that answer and agree."""

    def start(count=3, **options):
        cluster = make_cluster(**options)
        cluster.start(count)
        return cluster

    return start


@pytest.fixture
def proxies(ends):
    """What can stall and slow what passes between replicas."""
    proxies = network.Proxies()
    ends.callback(proxies.stop)
    return proxies


@pytest.fixture
def start_envoy(ends, tmp_path):
    def start(bootstrap):
        envoy = processes.Envoy(bootstrap, tmp_path)
        ends.callback(envoy.stop)
        envoy.await_live()
        return envoy

    return start


@pytest.fixture
def echo(ends):
    upstream = processes.Echo()
    ends.callback(upstream.stop)
    return upstream


@pytest.fixture(scope="session")
def schemas(tmp_path_factory):
    """A folder of schemas for kubeconform."""
    return manifests.write_schemas(tmp_path_factory.mktemp("schemas"))
