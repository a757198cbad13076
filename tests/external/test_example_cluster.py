"""examples/cluster: the command of README.md replaces each replica under load; the compose file starts three."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest
import yaml

import console
from processes import LOOPBACK, ROOT, TOLLGATE, Tollgate, eventually, run
from test_readme import CLUSTER_COMMAND, COMMANDS

# Starts replicas.
pytestmark = pytest.mark.cluster

FOLDER = ROOT / "examples" / "cluster"
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
LAST_LINE = re.compile(r"500 of 500 passed, [\d,]+ refused, 0 without an answer")
SECONDS_MAX = 60.0


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """`tollgate` is in PATH, and temporary files are in a folder of the test."""
    programs, temporary = tmp_path / "bin", tmp_path / "temporary"
    programs.mkdir()
    temporary.mkdir()
    (programs / "tollgate").symlink_to(TOLLGATE.resolve())
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(temporary))
    return temporary


@pytest.fixture
def start(environment, cleanup, tmp_path):
    """Starts the example, and waits until its replicas are under load."""

    def start():
        output = tmp_path / "output"
        with output.open("wb") as log:
            child = subprocess.Popen(
                [FOLDER / "run"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A shell in the background ignores SIGINT, and its children inherit that.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        cleanup.callback(child.wait, SECONDS_MAX)
        cleanup.callback(child.terminate)
        eventually("the first line", lambda: output.read_text().startswith("3 replicas: "), SECONDS_MAX)
        return child, output

    return start


def replicas_below(folder):
    """The processes that read their secret in this folder."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if f"{folder}/".encode() in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except (FileNotFoundError, ProcessLookupError):
            # It has ended.
            continue
    return found


def assert_nothing_remains(folder):
    assert (replicas_below(folder), list(folder.iterdir())) == ([], [])


def without_counts(text):
    return re.sub(r"[\d,]+ (passed|refused)", r"N \1", text)


def test_replicas_replaced_under_load_admit_exactly_the_limit(environment):
    [shown] = [output for command, output in COMMANDS if command == CLUSTER_COMMAND]

    printed = console.run(CLUSTER_COMMAND, timeout=SECONDS_MAX)

    assert LAST_LINE.fullmatch(printed.splitlines()[-1]), printed
    assert without_counts(printed) == without_counts(shown)
    assert_nothing_remains(environment)


def test_interrupted_example_leaves_nothing_behind(start, environment):
    child, _ = start()
    assert len(replicas_below(environment)) >= 3

    child.send_signal(signal.SIGINT)

    assert child.wait(SECONDS_MAX) == 128 + signal.SIGINT
    assert_nothing_remains(environment)


@pytest.mark.extended
def test_example_with_killed_replica_fails(start, environment):
    child, output = start()

    os.kill(replicas_below(environment)[0], signal.SIGKILL)

    assert child.wait(SECONDS_MAX) == 1, output.read_text()
    assert_nothing_remains(environment)


def test_example_without_program_says_how_to_build_it(tmp_path):
    # A copy has no build beside it.
    script = shutil.copy(FOLDER / "run", tmp_path)

    command, nothing = [sys.executable, script], {"PATH": str(tmp_path)}
    done = subprocess.run(command, env=nothing, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)

    assert (done.returncode, done.stdout) == (1, "")
    assert "tollgate is neither in PATH nor in target/release" in done.stderr
    assert "cargo build --release" in done.stderr


@pytest.fixture
def start_replica(cleanup, tmp_path):
    """Starts a replica of the compose file as a process, with other addresses and paths."""
    secret = tmp_path / "secret"
    secret.write_text("a secret that only these replicas share")

    def start(name, service, seeds):
        variables = dict(service["environment"])
        assert variables["TOLLGATE_CLUSTER__LISTEN"] == "0.0.0.0:8082"
        assert variables["TOLLGATE_CLUSTER__SECRET_FILE"] == f"/run/secrets/{service['secrets'][0]['source']}"
        rules, mounted, _ = service["volumes"][0].split(":")
        assert f"ENV TOLLGATE_RULES__PATH={pathlib.PurePath(mounted).parent}\n" in DOCKERFILE
        variables["TOLLGATE_CLUSTER__LISTEN"] = f"{LOOPBACK}:0"
        variables["TOLLGATE_CLUSTER__SECRET_FILE"] = secret
        variables["TOLLGATE_CLUSTER__SEED"] = ",".join(seeds) or "off"
        prefix = ["env", *(f"{variable}={value}" for variable, value in variables.items())]
        replica = Tollgate(FOLDER / rules, tmp_path / f"{name}.log", prefix=prefix)
        cleanup.callback(replica.kill)
        replica.await_listening()
        replica.await_ready()
        [peer] = eventually("its address", lambda: [e["advertised"] for e in replica.events() if "advertised" in e])
        return replica, peer

    return start


def test_replicas_of_compose_file_share_the_limit(start_replica):
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    load = services.pop("load")["command"]
    assert list(services) == ["replica-1", "replica-2", "replica-3"]
    assert {service["image"] for service in services.values()} == {"tollgate:0.1.0"}
    assert {tuple(service["command"]) for service in services.values()} == {("serve",)}
    seeds = {service["environment"]["TOLLGATE_CLUSTER__SEED"] for service in services.values()}
    assert seeds == {",".join(f"{name}:8082" for name in services)}

    replicas, peers = [], []
    for name, service in services.items():
        replica, peer = start_replica(name, service, peers)
        replicas.append(replica)
        peers.append(peer)
    eventually("they are a cluster", lambda: all(serving(replica) == 3 for replica in replicas))

    # As many requests, as fast as they are answered.
    assert load[3:7] == ["--rate", "50", "--duration", "30s"]
    done = run("bench", "--to", replicas[0].grpc, "--requests", 50 * 30, *load[7:])

    assert load[:3] == ["bench", "--to", "replica-1:8081"]
    assert re.search(r"^passed +500$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^errors +0$", done.stdout, re.MULTILINE), done.stdout


def serving(replica):
    members = replica.call(replica.admin, "/cluster").json()["members"]
    return sum(member["state"] == "serving" for member in members)
