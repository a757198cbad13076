"""The client packages of clients/, each by its own tests against the real service."""

import dataclasses
import re

import pytest

import clients
from processes import TOLLGATE

pytestmark = pytest.mark.extended

TESTS_TIMEOUT = 240.0


@dataclasses.dataclass(frozen=True)
class Package:
    """Commands of a package, which run in a copy of its directory. `setup` runs once, `tests` with TOLLGATE set. The
    output of `tests` has lines like `passed`, and `skipped` finds each number of skipped tests, or each of them."""

    setup: str
    tests: str
    passed: str
    skipped: str


PACKAGES = {
    "go": Package(
        setup="go build ./...",
        tests="go vet ./... && go test -v -count=1 ./...",
        passed=r"^--- PASS",
        skipped=r"^ *--- (SKIP)",
    ),
    "python": Package(
        setup="python3 -m venv .venv && .venv/bin/pip install --quiet '.[test]'",
        tests=".venv/bin/python -m pytest -q",
        passed=r"^\d+ passed",
        skipped=r"^\d+ passed.* (\d+) skipped",
    ),
    "node": Package(
        setup="npm install --no-package-lock --no-audit --no-fund",
        tests="npm test",
        passed=r"^. pass \d+$",
        skipped=r"^. skipped (\d+)$",
    ),
    "java": Package(
        setup="mvn -q -B test-compile",
        tests="rm -rf target/surefire-reports && mvn -q -B test && cat target/surefire-reports/*.txt",
        passed=r"^Tests run: \d+",
        skipped=r"^Tests run: .* Skipped: (\d+)",
    ),
}
# The client in Rust is a member of the workspace: `cargo test --workspace` runs its tests.
LANGUAGES = {*PACKAGES, "rust"}


@pytest.mark.parametrize("language", PACKAGES)
def test_client_package_passes_its_tests_against_server(language, record_property):
    missing = clients.missing(language)
    if missing:
        pytest.skip(f"{language}: not installed: {', '.join(missing)}")
    package = PACKAGES[language]
    folder = clients.install(language, package.setup)

    tests = ["bash", "-euo", "pipefail", "-c", package.tests]
    done = clients.run(tests, folder, TESTS_TIMEOUT, TOLLGATE=str(TOLLGATE.resolve()))

    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert re.search(package.passed, done.stdout, re.MULTILINE), done.stdout
    skipped = re.findall(package.skipped, done.stdout, re.MULTILINE)
    record_property("skipped", sum(int(number) if number.isdigit() else 1 for number in skipped))


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
