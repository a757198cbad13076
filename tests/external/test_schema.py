"""The command `tollgate schema`: what the program takes, the schema takes too."""

import itertools
import json
import random
import re

import jsonschema
import pytest
import yaml

from processes import ROOT, run

SEED = 20
LIMITS = 3_000
# Fewer problems than a check keeps, so that each line without a problem is accepted.
LIMITS_IN_FILE = 150


class Yaml11(yaml.CSafeLoader):
    """Scalars as in YAML 1.1, without dates."""


class Yaml12(yaml.CSafeLoader):
    """Scalars as in the core schema of YAML 1.2, by which editors read."""


SCALARS_12 = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
    "merge": r"<<",
}
Yaml11.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith((":timestamp", ":value"))]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Yaml12.yaml_implicit_resolvers = {}
for name, pattern in SCALARS_12.items():
    Yaml12.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(f"^(?:{pattern})$"), None)
Yaml12.add_constructor(
    "tag:yaml.org,2002:int",
    lambda loader, node: int(node.value, 0) if re.match("0[xo]", node.value) else int(node.value),
)


def printed(kind):
    done = run("schema", kind)
    assert done.returncode == 0, done
    schema = json.loads(done.stdout)
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


@pytest.fixture(scope="module")
def rules_schema():
    return printed("rules")


@pytest.fixture(scope="module")
def settings_schema():
    return printed("settings")


def refusals(validator, text):
    """What the schema refuses of a file, in each reading."""
    found = []
    for loader in (Yaml11, Yaml12):
        for document in yaml.load_all(text, Loader=loader):
            found += [f"{loader.__name__}: {error.json_path}: {error.message}" for error in validator.iter_errors(document)]
    return found


def documented(start):
    """The YAML blocks of the documentation that begin with this text."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    blocks = itertools.chain.from_iterable(re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.M | re.S) for page in pages)
    return [block for block in blocks if block.startswith(start)]


def test_schema_takes_every_rule_file_that_the_compiler_takes(rules_schema, tmp_path):
    files = [*(ROOT / "tests" / "fixtures" / "rules").glob("*.yaml"), *(ROOT / "deploy").rglob("rules/*.yaml")]
    for number, block in enumerate(documented("domain:")):
        files.append(tmp_path / f"{number}.yaml")
        files[-1].write_text(block)
    accepted = [path for path in files if run("check", path).returncode == 0]

    refused = {str(path): refusals(rules_schema, path.read_text()) for path in accepted}

    assert len(accepted) > 15, "examples were found"
    assert not {path: found for path, found in refused.items() if found}


# Values that keys may or may not have. A key without some here has those of its type.
VALUES = {
    "requests_per_unit": ["1", "1_000", "0x1F", "0b11", "0o17", "+7", "010", "~", "18446744073709551615", "-1", "'5'"],
    "unit": ["day", "MINUTE", "Hour", "week", "'month'", "", "eon"],
    "unit_multiplier": ["2", "0", "~"],
    "window": ["90s", "PT1M", "01:30:00", "'250ms'", "1h 30m", "90", "~"],
    "unlimited": ["true", "yes", "On", "n", "off", "FALSE", "~", "'yes'"],
    "name": ["a", "1", "true", "2026-01-01", "1.5", "''", "~", "=", ".nan"],
    "replaces": ["[{name: b}]", "[{name: 1}, {name: yes}]", "[]", "[{}]", "~"],
    "calendar": ["{timezone: UTC}", "{timezone: UTC, week_start: monday}", "{timezone: UTC, week_start: }", "{}", "~"],
    "sub_windows": ["2", "0", "~"],
    "burst": ["5", "0", "~"],
    "refill_amount": ["2", "~"],
    "refill_interval": ["1s", "~"],
    "max_delay": ["0s", "1s", "~"],
    "max_in_flight": ["5", "0", "20000", "~"],
    "hold_max": ["90s", "1ms", "25h", "~"],
    "count_denied": ["true", "no", "~"],
    "overdraft": ["Yes", "false"],
    "overdraft_limit": ["3", "0"],
    "on_owner_unavailable": ["local_share", "allow", "deny", "maybe", "~"],
    "lease": ["y", "OFF"],
    "headers": ["y", "OFF"],
    "denial_body": ["problem", "off", "none", "{text: a}", "{json: [1], content_type: a}", "{text: a, json: b}", "~"],
    "quotas": ["[{key: a, value: b, weight: 3}]", "[{key: a, value: b, floor: 0}]", "[{key: a}]", "[]", "~"],
    "quota_unit": ["tokens", "'two words'", "~"],
}
# Rules that are accepted, so that what is added to them often is too.
BASES = [
    {"unit": "day", "requests_per_unit": "1"},
    {"window": "1m", "requests_per_unit": "5"},
    {"unlimited": "true"},
    {"algorithm": "token_bucket", "refill_amount": "2", "refill_interval": "1s", "burst": "4"},
    {"algorithm": "leaky_queue", "unit": "hour", "requests_per_unit": "3", "burst": "1"},
    {"algorithm": "concurrency", "max_in_flight": "3"},
]


def values_of(schema):
    """Values of every key of a rule, with the algorithms that there are."""
    values = {}
    for name, key in schema["definitions"]["rate_limit"]["properties"].items():
        if name == "<<":
            continue
        if name in VALUES:
            values[name] = VALUES[name]
        elif "enum" in key:
            values[name] = [choice or "~" for choice in key["enum"]]
        elif "integer" in key.get("type", []):
            values[name] = ["5", "0", "~"]
        elif "string" in key.get("type", []):
            values[name] = ["1s", "a", "~"]
    return values


def random_limit(source, values, may_try=True):
    at_rate = [{"algorithm": name, "unit": "week", "requests_per_unit": "3"} for name in values["algorithm"]]
    limit = dict(source.choice(BASES + at_rate))
    for name in source.sample(sorted(values), source.randint(0, 3)):
        limit[name] = source.choice(values[name])
    if may_try and source.random() < 0.2:
        limit["candidate"] = random_limit(source, values, may_try=False)
    return "{" + ", ".join(f"{name}: {value}" for name, value in limit.items()) + "}"


def test_schema_takes_every_random_limit_that_the_compiler_takes(rules_schema, tmp_path):
    source = random.Random(SEED)
    values = values_of(rules_schema.schema)
    path = tmp_path / "rules.yaml"
    accepted, refused, wrong = 0, 0, {}
    for _ in range(LIMITS // LIMITS_IN_FILE):
        lines = [f"- {{key: k{number}, rate_limit: {random_limit(source, values)}}}" for number in range(LIMITS_IN_FILE)]
        path.write_text("domain: d\ndescriptors:\n" + "\n".join(lines) + "\n")
        report = json.loads(run("check", path, "--json").stdout)
        assert report["omitted"] == 0
        broken = {finding["line"] for finding in report["findings"] if finding["level"] == "error"}
        for number, line in enumerate(lines, start=3):
            found = refusals(rules_schema, f"domain: d\ndescriptors:\n{line}\n")
            refused += bool(found)
            if number not in broken:
                accepted += 1
                if found:
                    wrong[line] = found

    assert not wrong
    assert accepted > LIMITS / 10, "limits that the compiler takes"
    assert refused > LIMITS / 10, "limits that the schema refuses"


def test_every_property_of_rules_has_a_description(rules_schema):
    sections = {"root": rules_schema.schema, **rules_schema.schema["definitions"]}

    without = {
        f"{name}.{key}"
        for name, section in sections.items()
        for key, value in section["properties"].items()
        if not value.get("description")
    }

    assert not without
    assert len(sections) > 4, "the definitions were found"


@pytest.mark.parametrize(
    "text",
    [
        "descriptors: []",
        "domain: d\ndescriptor: []",
        "domain: ''",
        "domain: d\non_denied: charge_some",
        "domain: d\ndescriptors: [{value: a}]",
        "domain: d\ndescriptors: [~]",
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day}}]",
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: days, requests_per_unit: 1}}]",
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: many}}]",
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, window: 1s, requests_per_unit: 1}}]",
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, burst: 2}}]",
        "domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: yes, unit: day}}]",
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, calendar: {}}}]",
        "domain: d\ndescriptors: [{key: a, rate_limit: {requests_per_unit: 1}}]",
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: , requests_per_unit: 1}}]",
        "domain: d\ndescriptors: [{key: a, rate_limit: {requests_per_unit: 1, calendar: {timezone: UTC}}}]",
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, unit_multiplier: 0, requests_per_unit: 1}}]",
        "domain: d\ndescriptors: [{key: a, rate_limit: {algorithm: concurrency}}]",
        "domain: d\ndescriptors: [{key: a, rate_limit: {algorithm: concurrency, unit: day, requests_per_unit: 1}}]",
        "domain: d\ndescriptors: [{key: a, rate_limit: {algorithm: concurrency, max_in_flight: 0}}]",
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, candidate: {requests_per_unit: 1}}}]",
        "---\n...\n",
        "~",
    ],
)
def test_schema_refuses_common_mistakes(rules_schema, rule_file, text):
    assert run("check", rule_file(text)).returncode == 1
    assert refusals(rules_schema, text)


def settings_rows():
    """Name and default of each documented setting."""
    page = (ROOT / "docs" / "settings.md").read_text()
    return re.findall(r"^\| `([a-z_0-9.]+)` \| `[^`]+` \| `[^`]+` \| `([^`]*)` \|", page, re.M)


def nested(name, value):
    """A settings file with one setting."""
    *sections, name = name.split(".")
    lines = [f"{'  ' * depth}{section}:" for depth, section in enumerate(sections)]
    return "\n".join([*lines, f"{'  ' * len(sections)}{name}: {value}"]) + "\n"


def test_schema_takes_every_default_and_documented_settings_file(settings_schema):
    rows = settings_rows()
    files = [nested(name, f"'{value}'") for name, value in rows] + documented("# settings.yaml")
    # A colon at the end needs the quotes.
    files += [nested(name, value) for name, value in rows if not value.endswith(":")]
    # As the program also reads them.
    files += [
        "drain: {delay: '10s'}",
        "api: {dynamic_metadata: 'true', max_entries: '0128'}",
        "grpc: {socket_mode: 0660, tls_cert: off}",
        "rules: {xds.url: 'http://127.0.0.1:1'}",
        "rules.xds: {url: off}",
        "cluster:",
        "no_section: {}",
    ]

    refused = {text: refusals(settings_schema, text) for text in files}

    assert len(rows) > 80, "settings were found"
    assert not {text: found for text, found in refused.items() if found}


@pytest.mark.parametrize(
    "text", ["grcp: {listen: a}", "drain: {delays: 1s}", "headers: {retry_after: maybe}", "api: {max_entries: many}", "drain: 5"]
)
def test_schema_refuses_mistakes_in_settings(settings_schema, tmp_path, text):
    path = tmp_path / "settings.yaml"
    path.write_text(text)

    done = run("serve", "--settings", path)

    assert done.returncode == 64
    assert f"{path}:1:" in done.stderr, "the file is refused, and not another source"
    assert refusals(settings_schema, text)
