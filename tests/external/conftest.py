"""Shared fixtures: each test gets its own programs, which are stopped after it."""

import contextlib
import itertools
import json
import os
import shutil
import socket
import textwrap

import pytest
import yaml

import browser as browsers
import manifests
import network
import processes
from cluster import RULES, Cluster
from control_plane import ControlPlane
from monitoring import RULE
from processes import LISTENERS, LOOPBACK, TOLLGATE, Process, eventually
from quotas import Calls, OpenLoop
from rls import Callers


# Tools that a test may lack with CI=true, as tests/run names them. The reason of a skip is `TOOL: WHY`.
OPTIONAL_TOOLS = [tool for tool in os.environ.get("OPTIONAL_TOOLS", "").split(",") if tool]
# A test with one of these starts replicas. What they answer depends on the processor time that they get, so few other
# tests run beside it.
CLUSTER_FIXTURES = {"make_cluster", "start_cluster", "share_cluster"}


def pytest_configure(config):
    config.addinivalue_line("markers", "extended: slow to install or to run; `tests/run --all` runs it")
    config.addinivalue_line("markers", "paced: generates a low load for a minute or two, beside other such tests only")
    config.addinivalue_line("markers", "timing: measures time; runs alone, with default budgets")
    config.addinivalue_line("markers", "tools: of what few changes can break; `tests/run --tools` runs it")
    config.addinivalue_line("markers", "cluster: starts replicas of a cluster, with default budgets; set by its fixtures")
    config.addinivalue_line("markers", "compiles: builds the program, at a low priority beside others; set by its fixture")


def pytest_collection_modifyitems(items):
    """Tests that share a cluster run on the same worker."""
    for item in items:
        if "share_cluster" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group(item.module.__name__))
        if not CLUSTER_FIXTURES.isdisjoint(item.fixturenames):
            item.add_marker(pytest.mark.cluster)
        if "image" in item.fixturenames:
            item.add_marker(pytest.mark.compiles)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """With CI=true a test that is skipped fails, unless it lacks an optional tool."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true":
        reason = call.excinfo.value.msg if call.excinfo else "unknown"
        if reason.partition(":")[0] not in OPTIONAL_TOOLS:
            report.outcome, report.longrepr = "failed", f"skipped, and CI=true: {reason}"
    return report


def pytest_terminal_summary(terminalreporter, config):
    """Adds the number of skipped tests to the file that tests/run names, with those that a test counted in a suite that
    it ran. The reports of parallel workers are there too."""
    file, is_worker = os.environ.get("SKIPPED_TESTS"), hasattr(config, "workerinput")
    if file and not is_worker:
        passed, skipped = (terminalreporter.stats.get(outcome, []) for outcome in ("passed", "skipped"))
        counted = [value for one in passed for name, value in one.user_properties if name == "skipped"]
        with open(file, "a") as numbers:
            numbers.write(f"{len(skipped) + sum(counted)}\n")


@pytest.fixture(scope="session", autouse=True)
def programs_exist():
    assert processes.TOLLGATE.exists(), f"{processes.TOLLGATE} is missing: build it, or set TOLLGATE to its path"


@pytest.fixture
def cleanup():
    """Stops everything that a test started, in reverse order."""
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def module_cleanup():
    """The same for what the tests of a module share."""
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
def rule_file_of_prometheus(tmp_path):
    """The alerts, as Prometheus reads them."""
    path = tmp_path / "alerts.yaml"
    path.write_text(yaml.safe_dump(RULE["spec"]))
    return path


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
def memory_group(cleanup):
    """Makes a control group with a memory limit."""

    def make(limit):
        try:
            group = processes.MemoryGroup(limit)
        except OSError as error:
            pytest.skip(f"memory control group: {error}")
        cleanup.callback(group.remove)
        return group

    return make


@pytest.fixture
def start_control_plane(cleanup, tmp_path):
    def start(**options):
        control_plane = ControlPlane(tmp_path / "control-plane", **options)
        cleanup.callback(control_plane.stop)
        control_plane.await_listening()
        return control_plane

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


@pytest.fixture(scope="module")
def browser():
    browser = browsers.Browser()
    yield browser
    browser.stop()


@pytest.fixture
def callers(cleanup):
    """Calls over gRPC."""
    callers = Callers()
    cleanup.callback(callers.stop)
    return callers


@pytest.fixture
def make_cluster(cleanup, tmp_path, rule_file):
    """A cluster without replicas. A degraded check fails the test, unless it says that checks `may_degrade`."""
    clusters = []

    def make(rules=RULES, may_degrade=False, **options):
        cluster = Cluster(cleanup, tmp_path, rule_file(rules), **options)
        if not may_degrade:
            clusters.append(cluster)
        return cluster

    yield make
    for cluster in clusters:
        cluster.assert_none_degraded()


@pytest.fixture
def start_cluster(make_cluster):
    """A settled cluster of `count` ready replicas."""

    def start(count=3, **options):
        cluster = make_cluster(**options)
        cluster.start(count)
        return cluster

    return start


@pytest.fixture(scope="module")
def share_cluster(tmp_path_factory):
    """A settled cluster that the tests of a module share, each with keys of its own."""
    clusters = []
    with contextlib.ExitStack() as cleanup:

        def share(count=3, rules=RULES, may_degrade=False, **options):
            folder = tmp_path_factory.mktemp("shared")
            path = folder / "rules.yaml"
            path.write_text(textwrap.dedent(rules))
            cluster = Cluster(cleanup, folder, path, **options)
            if not may_degrade:
                clusters.append(cluster)
            cluster.start(count)
            return cluster

        yield share
        for cluster in clusters:
            cluster.assert_none_degraded()


@pytest.fixture
def proxies(cleanup):
    """Proxies that can stall and slow the links between replicas."""
    proxies = network.Proxies()
    cleanup.callback(proxies.stop)
    return proxies


@pytest.fixture
def start_envoy(cleanup, tmp_path):
    numbers = itertools.count(1)

    def start(bootstrap):
        # A folder for each, because the address of its admin listener is in a file there.
        folder = tmp_path / f"envoy-{next(numbers)}"
        folder.mkdir()
        envoy = processes.Envoy(bootstrap, folder)
        cleanup.callback(envoy.stop)
        envoy.await_live()
        return envoy

    return start


@pytest.fixture
def calls(cleanup):
    def start(tollgate, tenant, rate):
        started = Calls(tollgate, tenant, rate)
        cleanup.callback(started.stop)
        return started

    return start


@pytest.fixture
def open_loop(cleanup):
    def start(envoys, tenant):
        load = OpenLoop(envoys, tenant)
        cleanup.callback(load.stop)
        return load

    return start


@pytest.fixture
def start_gateway(cleanup, tmp_path):
    """Starts a gateway, which listens on `port`."""

    def start(port, *command):
        if shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]}: not installed; tests/run downloads it on Debian and Ubuntu")
        process = Process(command, tmp_path / f"{command[0]}.log")
        cleanup.callback(process.stop)

        def listens():
            process.assert_running()
            with socket.socket() as client:
                return client.connect_ex((LOOPBACK, port)) == 0

        eventually(f"{command[0]} listens", listens)
        return f"{LOOPBACK}:{port}"

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


@pytest.fixture
def start_pod(cleanup, tmp_path):
    """Starts the program as the container of a rendered overlay does, and returns its HTTP address."""

    def start(overlay, rules):
        secret = tmp_path / "secret"
        secret.write_text("a secret for this test alone\n")
        # Listeners use free ports, and the seed leads to no replica.
        variables = overlay.variables | {"TOLLGATE_RULES__PATH": rules}
        variables |= {f"TOLLGATE_{name.upper()}__LISTEN": f"{LOOPBACK}:0" for name in LISTENERS}
        if "TOLLGATE_CLUSTER__LISTEN" in variables:
            variables |= {
                "TOLLGATE_CLUSTER__LISTEN": f"{LOOPBACK}:0",
                "TOLLGATE_CLUSTER__ADVERTISE": LOOPBACK,
                "TOLLGATE_CLUSTER__SEED": f"{LOOPBACK}:1",
                "TOLLGATE_CLUSTER__SECRET_FILE": secret,
            }
        given = [f"{name}={value}" for name, value in variables.items() if name != "POD_IP"]
        process = Process(["env", *given, TOLLGATE, *overlay.container["args"]], tmp_path / "tollgate.log")
        cleanup.callback(process.kill)

        def address():
            process.assert_running()
            events = [json.loads(line) for line in process.output().splitlines()]
            return next((one["address"] for one in events if one.get("listener") == "http"), None)

        return eventually("the process listens", address)

    return start
