"""The command `tollgate check`."""

import json
import re

import pytest

from processes import ROOT, run

GOOD = """
    domain: edge
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 5}
"""


def problems(done):
    """(line, column, text) of each reported problem."""
    assert done.returncode == 1, done
    found = re.findall(r"^\S+?:(\d+):(\d+): (.+)$", done.stdout + done.stderr, re.MULTILINE)
    return [(int(line), int(column), text) for line, column, text in found]


def test_valid_file_prints_one_line_and_succeeds(rule_file):
    done = run("check", rule_file(GOOD))

    assert done.returncode == 0, done
    assert len((done.stdout + done.stderr).strip().splitlines()) == 1


RULES_TO_DEPLOY = sorted((ROOT / "deploy").rglob("rules/*.yaml"))


def test_deployed_rule_files_exist():
    assert ROOT / "deploy" / "rules" / "example.yaml" in RULES_TO_DEPLOY
    assert len(RULES_TO_DEPLOY) >= 2


@pytest.mark.parametrize("path", RULES_TO_DEPLOY, ids=lambda path: str(path.relative_to(ROOT)))
def test_deployed_rule_files_are_valid(path):
    done = run("check", path)

    assert done.returncode == 0, done


def test_every_problem_is_reported_with_its_location(rule_file):
    path = rule_file(
        """\
        domain: edge
        descriptors:
          - key: user
            ratelimit: {unit: minute, requests_per_unit: 5}
          - key: group
            rate_limit:
              unit: fortnight
              requests_per_unit: many
        """
    )

    done = run("check", path)

    found = problems(done)
    assert [line for line, _, _ in found] == [4, 7, 8]
    assert found[0][1] == 5, "the column of the misspelled key"
    assert "rate_limit" in found[0][2], "the suggested key"
    assert str(path) in done.stdout + done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "",
        "domain: edge\ndescriptors: [{key: user, rate_limit: {unit: minute}}]\n",
        "domain: ''\ndescriptors: []\n",
        "domain: edge\ndescriptors: {key: user}\n",
        "domain: edge\ndescriptors:\n  - key: [\n",
        "domain: edge\ndomain: edge\n",
        "domain: edge\ndescriptors:\n  - {key: user, shadow: true}\n",
        "domain: edge\ndescriptors:\n  - {key: a, rate_limit: {unit: day, requests_per_unit: -1}}\n",
        "domain: edge\non_denied: charge_some\n",
        "domain: edge\ndescriptors:\n  - {key: a}\n  - {key: a}\n",
    ],
    ids=[
        "empty",
        "no requests_per_unit",
        "empty domain",
        "mapping for a list",
        "not YAML",
        "key twice",
        "unknown key",
        "negative",
        "unknown on_denied",
        "rule twice",
    ],
)
def test_invalid_file_is_rejected_with_location(rule_file, text):
    assert problems(run("check", rule_file(text)))


def test_every_file_of_directory_is_checked(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "domain: a\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]\n"
    )
    (tmp_path / "b.yml").write_text("domain: b\ndescriptor: []\n")
    (tmp_path / "notes.txt").write_text("not rules\n")
    (tmp_path / ".hidden.yaml").write_text("nor: these\n")

    done = run("check", tmp_path)

    assert [line for line, _, _ in problems(done)] == [2]
    assert "b.yml:2:1: " in done.stdout + done.stderr

    (tmp_path / "b.yml").unlink()
    assert run("check", tmp_path).returncode == 0


def test_missing_path_is_named(tmp_path):
    done = run("check", tmp_path / "nowhere.yaml")

    assert done.returncode == 1
    assert "nowhere.yaml" in done.stdout + done.stderr


BROKEN = """\
    domain: edge
    descriptor: []
    descriptors: [{key: user, rate_limit: {unit: fortnight, requests_per_unit: 5}}]
"""
SUSPICIOUS = """\
    domain: edge
    descriptors:
      - {key: user, shadow_mode: true}
"""


def json_findings(report):
    """(level, line, column) of each finding."""
    return [(finding["level"], finding["line"], finding["column"]) for finding in report["findings"]]


@pytest.mark.parametrize(
    ("text", "code", "levels"),
    [(GOOD, 0, []), (SUSPICIOUS, 0, ["warning"]), (BROKEN, 1, ["error", "error"])],
    ids=["good", "suspicious", "broken"],
)
def test_json_reports_what_text_reports(rule_file, text, code, levels):
    path = rule_file(text)

    plain, report = run("check", path), run("check", path, "--json")

    assert [plain.returncode, report.returncode] == [code, code]
    found = json_findings(json.loads(report.stdout))
    assert [level for level, _, _ in found] == levels
    lines = re.findall(r":(\d+):(\d+): ", plain.stdout)
    assert [(int(line), int(column)) for line, column in lines] == [(line, column) for _, line, column in found]


def test_missing_path_is_reported_as_json(tmp_path):
    path = tmp_path / "nowhere.yaml"

    report = run("check", path, "--json")

    assert report.returncode == 1
    assert json.loads(report.stdout)["findings"][0]["file"] == str(path)
