"""The metrics page, as promtool reads it."""

import json
import shutil
import subprocess

import pytest

from processes import http_call

PROMTOOL = shutil.which("promtool")

HOSTILE = [
    'quote " quote',
    "back\\slash\\",
    "line\nline\r\n",
    "10.0.0.1",
    "2001:db8::1",
    "/a/b?c=d&e={f}",
    "größe 数 🦀",
    "comma,equals=brace}",
    "\x01\x7f\u2028",
    "# HELP tollgate_hits_total forged",
    "}\ntollgate_forged_total 1",
    "x" * 10_000,
    "",
]


def rules():
    """Rules with hostile domains, keys and values."""
    domains = []
    for index, text in enumerate(HOSTILE):
        limit = {"unit": "hour", "requests_per_unit": 2}
        descriptors = [
            {"key": f"key {text}", "rate_limit": limit},
            {"key": "exact", "value": text, "rate_limit": limit},
            {"key": "valued", "value_to_metric": True, "rate_limit": limit},
            {"key": "detailed", "detailed_metric": True, "rate_limit": limit},
        ]
        domains.append({"domain": f"domain {index} {text}", "descriptors": descriptors})
    return domains


@pytest.fixture
def scraped(tmp_path, start_tollgate):
    folder = tmp_path / "rules"
    folder.mkdir()
    domains = rules()
    for index, domain in enumerate(domains):
        # JSON is YAML too.
        (folder / f"{index}.yaml").write_text(json.dumps(domain))
    tollgate = start_tollgate(folder)
    for domain in domains:
        for text in HOSTILE:
            entries = [(f"key {text}", "x"), ("exact", text), ("valued", text), ("detailed", text)]
            descriptors = [{"entries": [{"key": key, "value": value}]} for key, value in entries]
            request = json.dumps({"domain": domain["domain"], "descriptors": descriptors})
            response = http_call(tollgate.http, "/json", "POST", body=request)
            assert response.code in (200, 429), response
    # A domain without rules.
    request = {"domain": 'no\nsuch"domain', "descriptors": [{"entries": [{"key": "k"}]}]}
    assert http_call(tollgate.http, "/json", "POST", body=json.dumps(request)).code == 200
    response = http_call(tollgate.metrics, "/metrics")
    assert response.code == 200
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return response.body


@pytest.mark.skipif(PROMTOOL is None, reason="promtool: not installed (Debian and Ubuntu: the package prometheus)")
def test_metrics_page_passes_promtool(scraped):
    done = subprocess.run(
        [PROMTOOL, "check", "metrics"], input=scraped.encode(), capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_hostile_values_stay_inside_their_labels(scraped):
    lines = scraped.split("\n")
    assert lines.pop() == ""
    for line in lines:
        assert line.startswith(("tollgate_", "process_", "# HELP ", "# TYPE ")), line
    # A line that begins with the prefix of Tollgate is a real metric.
    names = {line.split("{")[0].split(" ")[0] for line in lines if not line.startswith("#")}
    assert "tollgate_forged_total" not in names
    assert not any("such" in line for line in lines), "a domain without rules has no series"
    series = [line.rsplit(" ", 1)[0] for line in lines if not line.startswith("#")]
    assert len(series) == len(set(series)), "each series exists once"
    assert any('domain="domain 0 quote \\" quote",rule="domain 0 quote \\" quote.exact_' in one for one in series)


def test_metrics_listener_is_read_only(rule_file, start_tollgate):
    tollgate = start_tollgate(rule_file("domain: edge\ndescriptors: []\n"))
    assert http_call(tollgate.metrics, "/metrics").code == 200
    assert http_call(tollgate.metrics, "/metrics", "POST").code == 405
    assert http_call(tollgate.metrics, "/rules").code == 404
