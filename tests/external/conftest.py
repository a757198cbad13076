"""Shared fixtures: each test gets its own programs, which are stopped after it."""

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
def programs_exist():
    assert processes.TOLLGATE.exists(), f"{processes.TOLLGATE} is missing: build it, or set TOLLGATE to its path"


@pytest.fixture
def cleanup():
    """Stops everything that a test started, in reverse order."""
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
def start_tollgate(cleanup, tmp_path):
    numbers = itertools.count(1)

    def start(rules, ready=True, **options):
        tollgate = processes.Tollgate(rules, tmp_path / f"tollgate-{next(numbers)}.log", **options)
        cleanup.callback(tollgate.stop)
        tollgate.await_listening()
        if ready:
            tollgate.await_ready()
        return tollgate

    return start


@pytest.fixture
def closed_port():
    """An address that refuses connections: bound, so that no other process can take it, but not listening."""
    with socket.socket() as taken:
        taken.bind((processes.LOOPBACK, 0))
        yield f"{processes.LOOPBACK}:{taken.getsockname()[1]}"


@pytest.fixture
def silent_server():
    """An address that accepts connections and never sends a byte."""
    with socket.create_server((processes.LOOPBACK, 0)) as listening:
        yield f"{processes.LOOPBACK}:{listening.getsockname()[1]}"


@pytest.fixture
def callers(cleanup):
    """Calls over gRPC."""
    callers = Callers()
    cleanup.callback(callers.stop)
    return callers


@pytest.fixture
def make_cluster(cleanup, tmp_path, rule_file):
    """A cluster without replicas."""
    return lambda rules=RULES, **options: Cluster(cleanup, tmp_path, rule_file(rules), **options)


@pytest.fixture
def start_cluster(make_cluster):
    """A settled cluster of `count` ready replicas."""

    def start(count=3, **options):
        cluster = make_cluster(**options)
        cluster.start(count)
        return cluster

    return start


@pytest.fixture
def proxies(cleanup):
    """Proxies that can stall and slow the links between replicas."""
    proxies = network.Proxies()
    cleanup.callback(proxies.stop)
    return proxies


@pytest.fixture
def start_envoy(cleanup, tmp_path):
    def start(bootstrap):
        envoy = processes.Envoy(bootstrap, tmp_path)
        cleanup.callback(envoy.stop)
        envoy.await_live()
        return envoy

    return start


@pytest.fixture
def echo(cleanup):
    upstream = processes.Echo()
    cleanup.callback(upstream.stop)
    return upstream


@pytest.fixture(scope="session")
def schemas(tmp_path_factory):
    """A directory of schemas for kubeconform."""
    return manifests.write_schemas(tmp_path_factory.mktemp("schemas"))
