"""The client packages of clients/, each by its own tests against the real service."""

import dataclasses
import re

import pytest

import clients
from processes import ROOT, TOLLGATE

pytestmark = pytest.mark.extended

TESTS_TIMEOUT = 240.0


@dataclasses.dataclass(frozen=True)
class Package:
    """The commands that test a package in a copy of its directory, with TOLLGATE set. Their output has lines like `passed`,
    and `skipped` finds each number of skipped tests, or each of them."""

    tests: str
    passed: str
    skipped: str


PACKAGES = {
    "go": Package(
        tests="go test -v -count=1 ./...",
        passed=r"^--- PASS",
        skipped=r"^ *--- (SKIP)",
    ),
    "python": Package(
        tests=".venv/bin/python -m pytest -q",
        passed=r"^\d+ passed",
        skipped=r"^\d+ passed.* (\d+) skipped",
    ),
    "node": Package(
        tests="npm test",
        passed=r"^. pass \d+$",
        skipped=r"^. skipped (\d+)$",
    ),
    "java": Package(
        tests="rm -rf target/surefire-reports && mvn -q -B test && cat target/surefire-reports/*.txt",
        passed=r"^Tests run: \d+",
        skipped=r"^Tests run: .* Skipped: (\d+)",
    ),
}


@dataclasses.dataclass(frozen=True)
class FirstProgram:
    """What a new user of a package does in an empty directory. `before` comes before the command that installs the
    package, and `run` prints what the program prints. `timeout` is that of the program, and another one that suits a
    busy machine."""

    file: str
    run: str
    timeout: tuple[str, str]
    before: str = "true"


# Maven builds a program with a file of its own, which has the dependency of the page.
MAVEN_RUN = "org.codehaus.mojo:exec-maven-plugin:3.6.4:java -Dexec.mainClass=Ask"
FIRST_PROGRAMS = {
    "go": FirstProgram(
        file="main.go",
        before="go mod init shop",
        run="go run .",
        timeout=("Timeout: time.Second", "Timeout: 20 * time.Second"),
    ),
    "python": FirstProgram(
        file="ask.py",
        before="python3 -m venv .venv && . .venv/bin/activate",
        run="python ask.py",
        timeout=("timeout=1.0", "timeout=20.0"),
    ),
    "node": FirstProgram(file="ask.mjs", run="node ask.mjs", timeout=("timeoutMs: 1_000", "timeoutMs: 20_000")),
    "java": FirstProgram(
        file="src/main/java/Ask.java",
        run=f"mvn -q -B compile {MAVEN_RUN}",
        timeout=("new ClientOptions()", "new ClientOptions().timeout(java.time.Duration.ofSeconds(20))"),
    ),
}
FENCES = {"node": "js"}
# The client in Rust is a member of the workspace: `cargo test --workspace` runs its tests.
LANGUAGES = {*PACKAGES, "rust"}


@pytest.mark.parametrize("language", PACKAGES)
def test_client_package_passes_its_tests_against_server(language, record_property):
    missing = clients.missing(language)
    if missing:
        pytest.skip(f"{language}: not installed: {', '.join(missing)}")
    package = PACKAGES[language]
    folder = clients.install(language)

    tests = ["bash", "-euo", "pipefail", "-c", package.tests]
    done = clients.run(tests, folder, TESTS_TIMEOUT, TOLLGATE=str(TOLLGATE.resolve()))

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert re.search(package.passed, done.stdout, re.MULTILINE), done.stdout
    skipped = re.findall(package.skipped, done.stdout, re.MULTILINE)
    record_property("skipped", sum(int(number) if number.isdigit() else 1 for number in skipped))


@pytest.mark.parametrize("language", FIRST_PROGRAMS)
def test_first_program_of_readme_prints_what_the_page_shows(language, start_tollgate, tmp_path):
    missing = clients.missing(language)
    if missing:
        pytest.skip(f"{language}: not installed: {', '.join(missing)}")
    first, page = FIRST_PROGRAMS[language], (clients.PACKAGES / language / "README.md").read_text()
    (program, *_), (printed, *_) = (clients.blocks(page, fence) for fence in (FENCES.get(language, language), "text"))
    repo, folder = tmp_path / "repo", tmp_path / "program"
    clients.checkout(language, repo)
    (folder / first.file).parent.mkdir(parents=True)
    if language == "java":
        (project,) = clients.blocks(page, "xml")
        (folder / "pom.xml").write_text(project)
    tollgate = start_tollgate(ROOT / "examples" / "rules.yaml")
    for shown, given in (("127.0.0.1:8081", tollgate.grpc), first.timeout):
        assert shown in program
        program = program.replace(shown, given)

    # The program is written after the tools have made their files.
    commands = f"{{ {first.before}; {install(page)}; cp ../source {first.file}; }} >&2; {first.run}"
    (tmp_path / "source").write_text(program)
    # A store of its own, so that nothing else finds this package there.
    maven = f"-Dmaven.repo.local={clients.BUILDS / 'maven'}"
    bash = ["bash", "-euo", "pipefail", "-c", commands]
    done = clients.run(bash, folder, clients.BUILD_TIMEOUT, REPO=repo, MAVEN_OPTS=maven)

    # Maven resets colors around what the program prints.
    output = re.sub(r"\x1b\[\d*m", "", done.stdout)
    assert (done.returncode, output) == (0, printed), f"{output}\n{done.stderr}"


def install(page):
    """The command of a page that installs the package from a checkout."""
    return re.search(r"^\| a checkout at `\$REPO` \| `([^`]+)`", page, re.MULTILINE)[1]


# Its first program is an example of the package, and the package's own tests compare what it prints: to build all
# dependencies once more would take minutes.
def test_rust_client_is_added_from_a_checkout(tmp_path):
    if clients.missing("rust"):
        pytest.skip("cargo: not installed; it adds the package")
    command = install((clients.PACKAGES / "rust" / "README.md").read_text())
    clients.checkout("rust", tmp_path / "repo")
    (tmp_path / "shop").mkdir()
    commands = f"cargo init --quiet; {command}; cargo tree --quiet --depth 1"
    bash = ["bash", "-euo", "pipefail", "-c", commands]
    done = clients.run(bash, tmp_path / "shop", clients.BUILD_TIMEOUT, REPO=tmp_path / "repo")

    assert done.returncode == 0, done.stderr
    assert f"tollgate-ratelimit-client v0.1.0 ({tmp_path}/repo/clients/rust)" in done.stdout


def test_every_client_package_has_tests_and_a_row():
    folders = {path.name for path in clients.PACKAGES.iterdir() if path.is_dir() and path != clients.VECTORS}
    page = (clients.PACKAGES / "README.md").read_text()

    assert folders == LANGUAGES
    assert [language for language in sorted(folders) if f"]({language}/README.md)" not in page] == []


def test_generated_go_code_matches_proto_files(tmp_path):
    if clients.missing("go"):
        pytest.skip("go: not installed; it generates the code")
    folder = clients.PACKAGES / "go"
    clients.generate_go(folder, tmp_path)

    there = folder / "gen"
    names = [path.relative_to(tmp_path) for path in sorted(tmp_path.rglob("*.go"))]
    assert names == [path.relative_to(there) for path in sorted(there.rglob("*.go"))]
    for name in names:
        # The header names the version of protoc, which may differ.
        made, kept = (re.sub(r"(?m)^// .*protoc .*$", "", (at / name).read_text()) for at in (tmp_path, there))
        assert made == kept, f"{name}: run `go generate` in {folder}"
