"""What the tests share: each gets programs of its own, and they are gone when it is over."""

import contextlib
import itertools
import textwrap

import pytest

import manifests
import processes


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
