"""The command `tollgate check`."""

import json
import re

import jsonschema
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


def sarif_object(*required, **properties):
    return {"type": "object", "required": required, "properties": properties, "additionalProperties": False}


def sarif_list(of):
    return {"type": "array", "items": of}


@pytest.fixture(scope="module")
def sarif_schema():
    """What section 3 of SARIF 2.1.0 requires of the properties that the log has."""
    string = {"type": "string"}
    number = {"type": "integer", "minimum": 1}
    level = {"enum": ["none", "note", "warning", "error"]}
    message = sarif_object("text", text=string)
    kind = sarif_object("id", id=string, shortDescription=message, defaultConfiguration=sarif_object(level=level))
    driver = sarif_object("name", name=string, version=string, rules=sarif_list(kind))
    notifications = sarif_list(sarif_object("message", message=message, level=level))
    invocation = sarif_object(
        "executionSuccessful", executionSuccessful={"type": "boolean"}, toolExecutionNotifications=notifications
    )
    place = sarif_object(
        "artifactLocation",
        artifactLocation=sarif_object(uri={"type": "string", "pattern": r"^[!#-;=?-\[\]_a-z~%]*$"}),
        region=sarif_object("startLine", startLine=number, startColumn=number),
    )
    result = sarif_object(
        "message",
        ruleId=string,
        level=level,
        message=message,
        locations=sarif_list(sarif_object(physicalLocation=place)),
    )
    run_of_tool = sarif_object(
        "tool",
        tool=sarif_object("driver", driver=driver),
        invocations=sarif_list(invocation),
        columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
        results=sarif_list(result),
    )
    schema = sarif_object("version", "runs", version={"const": "2.1.0"}, runs=sarif_list(run_of_tool))
    schema["properties"]["$schema"] = string
    return jsonschema.Draft202012Validator(schema)


MANY_PROBLEMS = "domain: edge\ndescriptors:\n" + "- {value: a}\n" * 1_005
NAMES = """\
    domain: "b\u00fcro \U0001f600"
    descriptors:
      - {key: "k\u00e9y", ratelimit: 1}
"""


@pytest.mark.parametrize(
    "text",
    [GOOD, SUSPICIOUS, BROKEN, MANY_PROBLEMS, NAMES],
    ids=["good", "suspicious", "broken", "many problems", "names"],
)
def test_sarif_log_has_what_the_standard_requires(rule_file, sarif_schema, text):
    log = json.loads(run("check", rule_file(text), "--sarif").stdout)

    assert [error.message for error in sarif_schema.iter_errors(log)] == []


def test_sarif_log_of_unusual_paths_has_what_the_standard_requires(tmp_path, sarif_schema):
    paths = [tmp_path / "nowhere.yaml", tmp_path / "with space & \u00fcmlaut%20.yaml"]
    paths[1].write_text("domain: ''\n")
    for path in paths:
        log = json.loads(run("check", path, "--sarif").stdout)

        assert [error.message for error in sarif_schema.iter_errors(log)] == []


def test_schema_of_sarif_refuses_a_log_without_results_and_version(sarif_schema):
    assert list(sarif_schema.iter_errors({"runs": [{"tool": {}}]}))


def sarif_findings(log):
    """(level, line, column) of each result."""
    [run_of_tool] = log["runs"]
    places = [
        (result["level"], result["locations"][0]["physicalLocation"]["region"]) for result in run_of_tool["results"]
    ]
    return [(level, region["startLine"], region["startColumn"]) for level, region in places]


def json_findings(report):
    """(level, line, column) of each finding."""
    return [(finding["level"], finding["line"], finding["column"]) for finding in report["findings"]]


@pytest.mark.parametrize(
    ("text", "code", "levels"),
    [(GOOD, 0, []), (SUSPICIOUS, 0, ["warning"]), (BROKEN, 1, ["error", "error"])],
    ids=["good", "suspicious", "broken"],
)
def test_json_and_sarif_report_what_text_reports(rule_file, text, code, levels):
    path = rule_file(text)

    plain, report, log = (run("check", path, *flags) for flags in ([], ["--json"], ["--sarif"]))

    assert [plain.returncode, report.returncode, log.returncode] == [code] * 3
    found = json_findings(json.loads(report.stdout))
    assert [level for level, _, _ in found] == levels
    assert sarif_findings(json.loads(log.stdout)) == found
    lines = re.findall(r":(\d+):(\d+): ", plain.stdout)
    assert [(int(line), int(column)) for line, column in lines] == [(line, column) for _, line, column in found]


def test_missing_path_is_reported_as_json_and_sarif(tmp_path):
    path = tmp_path / "nowhere.yaml"

    report, log = run("check", path, "--json"), run("check", path, "--sarif")

    assert [report.returncode, log.returncode] == [1, 1]
    assert json.loads(report.stdout)["findings"][0]["file"] == str(path)
    assert len(sarif_findings(json.loads(log.stdout))) == 1
