"""deploy/monitoring: alerts that fire when they should, and a dashboard whose queries find series."""

import contextlib
import enum
import itertools
import json
import re
import shutil
import socket
import subprocess
import typing
import urllib.parse

import pytest
import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as grafana

import charts
import manifests
from charts import MONITORING
from manifest_checks import problems
from manifests import FOLDER
from processes import LOOPBACK, ROOT, Process, eventually, http_call

RULE = yaml.safe_load((MONITORING / "prometheus-rule.yaml").read_text())
ALERTS = {one["alert"]: one for group in RULE["spec"]["groups"] for one in group["rules"]}
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
PANELS = [one for one in DASHBOARD["panels"] if one["type"] != "row"]
QUERIES = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]
METRICS = (ROOT / "docs" / "metrics.md").read_text()
# Labels that a scrape adds.
TARGET_LABELS = {"job", "instance", "namespace", "service"}


def installed(name, package="prometheus"):
    return shutil.which(name) or pytest.skip(f"{name}: not installed (Debian and Ubuntu: the package {package})")


def promtool(*arguments):
    command = [installed("promtool"), *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def rule_file_of_prometheus(tmp_path):
    path = tmp_path / "alerts.yaml"
    path.write_text(yaml.safe_dump(RULE["spec"]))
    return path


def test_alerts_pass_promtool(rule_file_of_prometheus):
    done = promtool("check", "rules", rule_file_of_prometheus)

    assert done.returncode == 0, done.stderr
    assert f"SUCCESS: {len(ALERTS)} rules found" in done.stdout


def catalog():
    """The labels of each metric, from the table that a test of the program compares with its catalog."""
    rows = re.findall(r"^\| `((?:tollgate|process)_\w+)` \| (\w+) \|([^|]*)\|", METRICS, re.MULTILINE)
    found = {}
    for name, kind, labels in rows:
        labels = set(re.findall(r"`(\w+)`", labels))
        if kind == "histogram":
            found |= {f"{name}_bucket": labels | {"le"}, f"{name}_sum": labels, f"{name}_count": labels}
        else:
            found[name] = labels
    return found


def expressions():
    yield from ((name, alert["expr"]) for name, alert in ALERTS.items())
    yield from ((title, target["expr"]) for title, target in QUERIES)
    for one in DASHBOARD["templating"]["list"]:
        if one["type"] == "query":
            yield one["name"], one["query"]["query"]


def test_expressions_use_metrics_and_labels_of_the_catalog():
    known, used = catalog(), set()
    for subject, expression in expressions():
        for name, selector in re.findall(r"\b((?:tollgate|process)_\w+)(?:\{([^}]*)\})?", expression):
            assert name in known, f"{subject}: no metric {name}"
            labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
            assert labels <= known[name] | TARGET_LABELS, f"{subject}: {name} has no label {labels - known[name]}"
            used.add(name)
    # The rest are what the dashboard would only repeat.
    assert known.keys() - used == {
        *("tollgate_request_duration_seconds_sum", "tollgate_queue_delay_seconds_sum"),
        *("tollgate_queue_delay_seconds_count", "tollgate_top_missed_denials_total"),
        *("tollgate_cluster_batches_total", "tollgate_cluster_resent_pieces_total"),
        *("tollgate_store_round_trip_seconds_sum", "tollgate_store_round_trip_seconds_count"),
        # What a control plane removes is no fault of the service.
        "tollgate_xds_removals_total",
        # Nor are what clients send and what keys are refused for, or pieces that wait for others.
        *("tollgate_forward_auth_bad_headers_total", "tollgate_penalties_total"),
        "tollgate_cluster_delayed_pieces_total",
        *("tollgate_rlqs_convergence_seconds_sum", "tollgate_rlqs_convergence_seconds_count"),
    }


RUNBOOKS = "https://example.com/tollgate/"


def sections(page):
    """The text below each heading of a page, by the anchor of the heading."""
    found = {}
    for part in re.split(r"^#+ ", page.read_text(), flags=re.MULTILINE)[1:]:
        title, text = part.split("\n", 1)
        found[re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")] = text
    return found


@pytest.mark.parametrize("name", ALERTS)
def test_runbook_of_alert_describes_its_metric(name):
    expression, url = ALERTS[name]["expr"], ALERTS[name]["annotations"].get("runbook_url", "")
    assert url.startswith(RUNBOOKS), "no runbook"

    page, anchor = url.removeprefix(RUNBOOKS).split("#")

    text = sections(ROOT / page)[anchor]
    metrics = set(re.findall(r"\b(?:(?:tollgate|process)_\w+|up)\b(?=[\[{) ])", expression))
    assert metrics, "the expression has a metric"
    for metric in metrics:
        assert f"`{metric.removesuffix('_bucket')}`" in text or f"`{metric}{{" in text, metric


TIMES = {"a minute": "1m", "10 seconds": "10s", "2 minutes": "2m", "5 minutes": "5m"}
TIMES |= {"10 minutes": "10m", "15 minutes": "15m"}


def test_metrics_page_and_alerts_are_the_same():
    """Each expression of the table is an alert, with the same duration, and the other way round."""
    cells = [line.rsplit(" | ", 1)[1] for line in METRICS.splitlines() if re.match(r"\| `(tollgate|process)_", line)]
    cells.append(next(line for line in METRICS.splitlines() if "`up{" in line))
    documented = set()
    for cell in cells:
        for expression, duration in re.findall(r"`([^`]+ (?:>|==|<) [^`]+)`(?: for ([\w ]+))?", cell):
            documented.add((expression, TIMES[duration] if duration else "0s"))

    alerts = {(" ".join(alert["expr"].split()), alert.get("for", "0s")) for alert in ALERTS.values()}

    assert documented == alerts


def series(text, values):
    return {"series": text, "values": values}


def rising(text):
    """A counter that grows by one in each minute from the tenth on."""
    return series(text, "0x10 1+1x60")


def steady(text, value=5):
    return series(text, f"{value}x70")


ONE = 'job="tollgate",instance="a:9090",namespace="shop",service="tollgate-metrics"'
TWO = ONE.replace("a:9090", "b:9090")
# Another installation, which must not be mixed with the first one.
ELSEWHERE = ONE.replace("shop", "other")
DECISIONS = "tollgate_decisions_total{domain='edge',rule='edge.user',code='%s',%s}"


def counter(name, labels=""):
    """A counter that grows, and one that does not."""
    labels = f"{labels},{ONE}" if labels else ONE
    return [rising(f"{name}{{{labels}}}")], [steady(f"{name}{{{labels}}}")]


def gauge(name, bad, good, labels=""):
    labels = f"{labels},{ONE}" if labels else ONE
    return [steady(f"{name}{{{labels}}}", bad)], [steady(f"{name}{{{labels}}}", good)]


def decisions(denied):
    """Decisions of which a share is over the limit; another installation refuses nothing."""
    return [
        series(DECISIONS % ("over_limit", ONE), f"0+{denied}x70"),
        series(DECISIONS % ("ok", ONE), f"0+{100 - denied}x70"),
        series(DECISIONS % ("over_limit", ELSEWHERE), "0+0x70"),
        series(DECISIONS % ("ok", ELSEWHERE), "0+1000x70"),
    ]


def durations(slow):
    """100 decisions a minute of which some take 5 to 10 ms."""
    name = "tollgate_request_duration_seconds_bucket"
    buckets = {"0.0025": 100 - slow, "0.005": 100 - slow, "0.01": 100, "+Inf": 100}
    return [series(f'{name}{{le="{le}",{ONE}}}', f"0+{count}x70") for le, count in buckets.items()]


def round_trips(slow):
    """100 round trips a minute of which some take 30 to 100 ms."""
    buckets = {"0.03": 100 - slow, "0.1": 100, "+Inf": 100}
    name = "tollgate_store_round_trip_seconds_bucket"
    return [series(f'{name}{{le="{le}",{ONE}}}', f"0+{count}x70") for le, count in buckets.items()]


def hashes(second):
    names = [('"one"', ONE), (f'"{second}"', TWO), ('"other"', ELSEWHERE)]
    return [steady(f"tollgate_rules_info{{hash={text},{target}}}", 1) for text, target in names]


def members(second):
    found = [(ONE, 3), (TWO, second), (ELSEWHERE, 5)]
    return [steady(f"tollgate_cluster_members{{{target}}}", count) for target, count in found]


def certificates(end):
    # The tests of promtool begin at the time 0.
    return [steady(f'tollgate_certificate_end_time_seconds{{listener="grpc",{ONE}}}', end)]


def backups(age, counters):
    return [
        steady(f"tollgate_cluster_backup_age_seconds{{{ONE}}}", age),
        series(f"tollgate_cluster_backed_up_counters_total{{{ONE}}}", f"0+{counters}x70"),
    ]


def process_starts(job):
    return [series(f'process_start_time_seconds{{job="{job}",instance="a:9090"}}', "1x40 2x5 3x5 4x20")]


# For each alert: series with which it fires, and series with which it does not.
CASES = {
    "TollgateDown": ([steady(f"up{{{ONE}}}", 0)], [steady(f"up{{{ONE}}}", 1), steady('up{job="other"}', 0)]),
    "TollgateRestarts": (process_starts("tollgate"), process_starts("other")),
    "TollgateRuleRefusesMuch": (decisions(60), decisions(40)),
    "TollgateUnknownDomain": counter("tollgate_unknown_domain_requests_total"),
    "TollgateRequestsUnanswered": counter("tollgate_unanswered_requests_total", 'reason="joining"'),
    "TollgateSlow": (durations(5), durations(0)),
    "TollgateCountersEvicted": (
        counter("tollgate_counters_evicted_total", 'reason="unexpired"')[0],
        counter("tollgate_counters_evicted_total", 'reason="idle"')[0],
    ),
    "TollgateCountersRefused": counter("tollgate_counters_refused_total"),
    "TollgateClockStepped": counter("tollgate_clock_steps_total", 'direction="back"'),
    "TollgateNoRules": gauge("tollgate_rules_generation", 0, 1),
    "TollgateRulesStale": gauge("tollgate_rules_stale", 1, 0),
    "TollgateRulesDiffer": (hashes("two"), hashes("one")),
    "TollgateRulesCopyErrors": counter("tollgate_rules_url_copy_errors_total"),
    "TollgateXdsDisconnected": gauge("tollgate_xds_connected", 0, 1),
    "TollgateXdsConflicts": gauge("tollgate_xds_conflicts", 2, 0),
    "TollgateOverlayMisfits": gauge("tollgate_overlay_misfits", 2, 0),
    "TollgateOverlayStale": gauge("tollgate_overlay_stale", 1, 0),
    "TollgateAcceptErrors": counter("tollgate_accept_errors_total", 'listener="grpc"'),
    "TollgateConnectionsRefused": (
        counter("tollgate_connections_closed_total", 'listener="grpc",reason="full"')[0],
        counter("tollgate_connections_closed_total", 'listener="grpc",reason="age"')[0],
    ),
    "TollgateRequestsUnfinished": counter("tollgate_unfinished_requests_refused_total"),
    "TollgateCertificateErrors": counter("tollgate_certificate_errors_total", 'listener="grpc"'),
    "TollgateCertificateExpires": (certificates(3600 + 86_400), certificates(3600 + 8 * 86_400)),
    "TollgateLogBlocked": (
        counter("tollgate_log_lines_dropped_total", 'reason="output"')[0],
        counter("tollgate_log_lines_dropped_total", 'reason="rate"')[0],
    ),
    "TollgateClusterNotServing": gauge("tollgate_cluster_state", 0, 1, 'state="serving"'),
    "TollgateClusterMembersDiffer": (members(2), members(3)),
    "TollgateClusterRulesDiffer": gauge("tollgate_cluster_members_of_other_rules", 1, 0),
    "TollgateClusterIsolated": gauge("tollgate_cluster_isolated", 1, 0),
    "TollgateClusterRejected": gauge("tollgate_cluster_rejected", 1, 0),
    "TollgateClusterSlotsMoving": gauge("tollgate_cluster_slots_moving", 7, 0),
    "TollgateClusterOwnerLost": counter("tollgate_cluster_slots_claimed_total"),
    "TollgateClusterCountersDiscarded": counter("tollgate_cluster_begun_anew_total"),
    "TollgateClusterDegraded": counter("tollgate_cluster_degraded_checks_total"),
    "TollgateClusterBreakerOpened": counter("tollgate_cluster_breaker_openings_total"),
    "TollgateClusterReportsDropped": counter("tollgate_cluster_untold_total"),
    "TollgateClusterBackupsRefused": counter("tollgate_cluster_backups_refused_total"),
    # Without changed counters there is nothing to back up.
    "TollgateClusterBackupsLate": (backups(6, 60), backups(6, 0)),
    "TollgateClusterLinksRefused": counter("tollgate_cluster_links_refused_total", 'reason="untrusted"'),
    "TollgateStoreUnavailable": gauge("tollgate_store_ready", 0, 1),
    "TollgateStoreDegraded": counter("tollgate_store_degraded_checks_total"),
    "TollgateStoreSlow": (round_trips(5), round_trips(0)),
    "TollgateStoreLostCounters": counter("tollgate_store_lost_counters_total"),
}


def firing(inputs, folder, rules):
    """What promtool reports of each alert that fires after an hour of these series, by name."""
    # Any alert differs from an alert that cannot exist, so promtool reports all alerts that fire.
    impossible = {"exp_alerts": [{"exp_labels": {"no": "such alert"}}]}
    expected = [{"eval_time": "1h", "alertname": name} | impossible for name in ALERTS]
    test = {"interval": "1m", "input_series": inputs, "alert_rule_test": expected}
    path = folder / "test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}))
    done = promtool("test", "rules", path)
    report = done.stdout + done.stderr
    found = dict(re.findall(r"alertname: (\w+), .*?got:\[(.*?)(?=alertname: |\Z)", report, re.DOTALL))
    assert found.keys() == ALERTS.keys(), report
    return {name: text for name, text in found.items() if text.strip() != "]"}


def test_every_alert_has_a_case():
    assert CASES.keys() == ALERTS.keys()


@pytest.mark.extended
@pytest.mark.parametrize("name", CASES)
def test_alert_fires_when_it_should(name, tmp_path, rule_file_of_prometheus):
    bad, good = CASES[name]

    fired = firing(bad, tmp_path, rule_file_of_prometheus)

    assert fired.keys() == {name}, "this alert and no other"
    severity = ALERTS[name]["labels"]["severity"]
    assert severity in ("critical", "warning")
    assert f'severity="{severity}"' in fired[name]
    annotations = re.search(r"Annotations:\{(.*)\}", fired[name]).group(1)
    # A label that the result of the expression does not have is an empty text.
    assert not re.search(r"\{\{|no value|<error|  |: \.| \.", annotations), annotations
    assert firing(good, tmp_path, rule_file_of_prometheus) == {}


def test_alerts_wait_as_long_as_they_say(tmp_path, rule_file_of_prometheus):
    down = f"up{{{ONE}}}"

    for minutes, fires in ((1, True), (0, False)):
        # Down from this many minutes before the hour is over.
        recent = [series(down, f"1x{59 - minutes} 0x10")]
        assert bool(firing(recent, tmp_path, rule_file_of_prometheus)) is fires


def test_dashboard_has_a_sound_structure():
    ids = [one["id"] for one in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    cells = set()
    for one in DASHBOARD["panels"]:
        place = one["gridPos"]
        assert place["x"] + place["w"] <= 24
        columns, rows = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        own = set(itertools.product(columns, rows))
        assert not cells & own, f"{one['title']} lies over another panel"
        cells |= own
    sections = [one["title"] for one in DASHBOARD["panels"] if one["type"] == "row"]
    for section in ("Traffic", "Refusals by rule", "Latency", "Counters and memory", "Rules"):
        assert section in sections
    assert {"Cluster", "Shared store"} <= set(sections)
    known = {one["name"] for one in DASHBOARD["templating"]["list"]}
    for panel in PANELS:
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"].get("unit") or panel["type"] == "heatmap", panel["title"]
        variables = set(re.findall(r"\$\{?(\w+)", json.dumps(panel))) - {"__rate_interval"}
        assert variables <= known, panel["title"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert 'namespace=~"$namespace"' in target["expr"], panel["title"]


def schema_errors(content):
    """What of a dashboard is not in Grafana's schema: unknown fields, and values of a wrong type."""
    plugins.register_default_plugins()
    model = grafana.Dashboard.from_json(content)
    written = json.loads(JSONEncoder().encode(model))
    return [*lost(content, written, ""), *wrong_types(model, grafana.Dashboard, "")]


def lost(content, written, path):
    """The model drops the fields that it does not know; it adds defaults."""
    if isinstance(content, dict) and isinstance(written, dict):
        for key, value in content.items():
            if key not in written:
                yield f"{path}/{key}: unknown"
            else:
                yield from lost(value, written[key], f"{path}/{key}")
    elif isinstance(content, list) and isinstance(written, list):
        for index, (one, other) in enumerate(zip(content, written, strict=True)):
            yield from lost(one, other, f"{path}/{index}")
    elif content != written:
        yield f"{path}: {content} is read as {written}"


def wrong_types(value, hint, path):
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if hint in (typing.Any, object):
        # Options and queries are of a class that the kind of panel chooses.
        if hasattr(value, "to_json"):
            yield from wrong_types(value, type(value), path)
    elif origin is typing.Union:
        known = [part for part in parts if part is not type(None)]
        own = known if len(known) == 1 else [part for part in known if typing.get_origin(part) or type(value) is part]
        if value is None and type(None) in parts:
            return
        errors = [list(wrong_types(value, part, path)) for part in own]
        yield from min(errors, key=len, default=[f"{path}: {value!r} is no {hint}"])
    elif origin is typing.Literal:
        if value not in parts:
            yield f"{path}: {value!r} is not one of {parts}"
    elif origin is list:
        if not isinstance(value, list):
            yield f"{path}: {value!r} is no list"
        else:
            for index, one in enumerate(value):
                yield from wrong_types(one, parts[0], f"{path}/{index}")
    elif origin is dict:
        if not isinstance(value, dict):
            yield f"{path}: {value!r} is no object"
        else:
            for key, one in value.items():
                yield from wrong_types(one, parts[1], f"{path}/{key}")
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        if value not in [one.value for one in hint] and value not in list(hint):
            yield f"{path}: {value!r} is no {hint.__name__}"
    elif hint is float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            yield f"{path}: {value!r} is no number"
    elif hint in (str, int, bool, type(None)):
        if type(value) is not hint:
            yield f"{path}: {value!r} is no {hint.__name__}"
    elif not isinstance(value, hint):
        yield f"{path}: {value!r} is no {hint.__name__}"
    else:
        for name, inner in typing.get_type_hints(type(value)).items():
            yield from wrong_types(getattr(value, name), inner, f"{path}/{name}")


def test_dashboard_fits_the_schema_of_grafana():
    assert schema_errors(DASHBOARD) == []


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        (lambda d: d.update(tittle="Tollgate"), "/tittle: unknown"),
        (lambda d: d["panels"][1].update(gridpos={}), "/panels/1/gridpos: unknown"),
        (lambda d: d["panels"][1]["gridPos"].update(w="8"), "'8' is no int"),
        (lambda d: d["panels"][1]["options"].update(textMode="loud"), "'loud' is no"),
        (lambda d: d["panels"][1]["targets"][0].update(expression="up"), "/expression: unknown"),
        (lambda d: d["templating"]["list"][0].update(type="list"), "'list' is no"),
    ],
)
def test_planted_dashboard_fault_is_reported(plant, expected):
    content = json.loads(json.dumps(DASHBOARD))

    plant(content)

    found = schema_errors(content)
    assert any(expected in one for one in found), found


RULES = """
    domain: edge
    descriptors:
      - key: user
        rate_limit:
          unit: year
          requests_per_unit: 5
          algorithm: fixed_window
          candidate: {unit: year, requests_per_unit: 1, algorithm: fixed_window}
      - key: shadow
        shadow_mode: true
        rate_limit: {unit: year, requests_per_unit: 1}
      - key: queue
        rate_limit: {unit: second, requests_per_unit: 50, algorithm: leaky_queue, burst: 3}
"""


class Prometheus(Process):
    """A real Prometheus that scrapes these addresses every second and evaluates the alerts."""

    address = None

    def __init__(self, targets, rules, folder):
        static = [{"targets": list(targets), "labels": {"namespace": "shop", "service": "tollgate-metrics"}}]
        scrape = {"job_name": "tollgate", "scrape_interval": "1s", "static_configs": static}
        config = {"global": {"evaluation_interval": "1s"}, "scrape_configs": [scrape], "rule_files": [str(rules)]}
        path = folder / "prometheus.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [installed("prometheus"), f"--config.file={path}", f"--storage.tsdb.path={folder / 'tsdb'}"]
        command += [f"--web.listen-address={LOOPBACK}:0", "--log.format=json"]
        super().__init__(command, folder / "prometheus.log")

    def await_listening(self):
        def address():
            self.assert_running()
            events = (json.loads(line) for line in self.output().splitlines() if line.endswith("}"))
            return next((one["address"] for one in events if one.get("msg") == "Listening on"), None)

        self.address = eventually("Prometheus listens", address)
        eventually("Prometheus is ready", lambda: http_call(self.address, "/-/ready").code == 200)

    # The instant of all queries; None for the present.
    instant = None

    def query(self, expression):
        """The result of an instant query: labels and value of each series."""
        parameters = {"query": expression} | ({"time": self.instant} if self.instant else {})
        response = http_call(self.address, "/api/v1/query?" + urllib.parse.urlencode(parameters)).json()
        assert response["status"] == "success", (expression, response)
        return response["data"]["result"]

    def rules(self):
        return http_call(self.address, "/api/v1/rules").json()["data"]["groups"]


def with_variables(expression, instance=".*"):
    """An expression of the dashboard as Grafana sends it."""
    values = {"namespace": "shop", "instance": instance, "domain": ".*", "__rate_interval": "5m"}
    return re.sub(r"\$(\w+)", lambda name: values[name.group(1)], expression)


class Redis(Process):
    """A server of Redis on a free port."""

    def __init__(self, folder):
        with socket.socket() as sock:
            sock.bind((LOOPBACK, 0))
            self.address = sock.getsockname()
        command = [installed("redis-server", "redis-server"), "--save", "", "--dir", folder]
        super().__init__([*command, "--bind", LOOPBACK, "--port", self.address[1]], folder / "redis.log")

    def listens(self):
        self.assert_running()
        with contextlib.suppress(OSError), socket.create_connection(self.address, 1):
            return True
        return False


# Panels that show only what goes wrong, or what this cluster does not have (TLS).
EMPTY = {"Failed links", "Connections closed by the server", "Certificates expire in"}
# Rules of files have no control plane and no URL.
EMPTY |= {"Connections to the control plane", "Responses of the control plane", "Overlay"}
EMPTY |= {"Requests for the rules", "Age of the rules", "Copy of the rules"}
# The replicas serve no quotas.
EMPTY |= {"Clients with quotas", "Reported requests", "Parts of limits", "Reports and assignments"}
EMPTY |= {"Time until shares are adjusted", "Refused streams and buckets"}


@pytest.fixture
def prometheus(cleanup, start_cluster, start_tollgate, rule_file, rule_file_of_prometheus, tmp_path):
    """A Prometheus that has scraped a cluster, and a replica with a shared store, with some traffic."""
    installed("prometheus")
    redis = Redis(tmp_path)
    cleanup.callback(redis.stop)
    eventually("Redis listens", redis.listens)
    cluster = start_cluster(2, rules=RULES)
    flags = ["--store-kind", "redis", "--store-redis-urls", f"redis://{LOOPBACK}:{redis.address[1]}"]
    replicas = [*cluster.replicas, start_tollgate(rule_file(RULES), flags=flags)]
    started = Prometheus([one.metrics for one in replicas], rule_file_of_prometheus, tmp_path)
    cleanup.callback(started.stop)
    started.await_listening()
    # From 0, so that Prometheus sees every number grow.
    eventually("a scrape of each replica", lambda: len(started.query("tollgate_build_info")) == len(replicas))
    calls = list(itertools.product(replicas, ("user", "shadow", "queue"), range(8)))
    for replica, key, number in calls:
        replica.ask("edge", f"{key}={number % 2}")
    done = f"sum(tollgate_request_duration_seconds_count) == {len(calls)}"
    (found,) = eventually("Prometheus sees all calls", lambda: started.query(done))
    # The traffic stays in the window, however long the queries take.
    started.instant = found["value"][0]
    return started


@pytest.mark.extended
def test_queries_of_dashboard_find_series_of_a_real_cluster(prometheus):
    empty = set()
    for title, target in QUERIES:
        found = prometheus.query(with_variables(target["expr"]))
        if not found:
            empty.add(title)
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            assert all(one["metric"].get(label) for one in found), f"{title}: no label {label}"

    assert empty - EMPTY == set()
    (up,) = prometheus.query(with_variables(PANELS[0]["targets"][0]["expr"]))
    assert up["value"][1] == "3"


@pytest.mark.extended
def test_variables_of_dashboard_find_series(prometheus):
    for one in DASHBOARD["templating"]["list"][1:]:
        selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)", one["query"]["query"]).groups()
        values = {found["metric"].get(label) for found in prometheus.query(with_variables(selector))}
        assert values and None not in values, one["name"]


@pytest.mark.extended
def test_alerts_are_evaluated_by_a_real_prometheus(prometheus):
    def evaluated():
        groups = prometheus.rules()
        rules = [rule for group in groups for rule in group["rules"]]
        return rules if len(rules) == len(ALERTS) and all(rule["health"] != "unknown" for rule in rules) else None

    rules = eventually("all alerts are evaluated", evaluated)

    assert {rule["name"]: rule["health"] for rule in rules} == dict.fromkeys(ALERTS, "ok")
    # All replicas are healthy. Alerts that wait may be pending: the traffic of the test is refused for the most part.
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []


@pytest.mark.extended
def test_kustomize_component_is_valid(tmp_path, schemas):
    schemas = charts.write_operator_schemas(schemas)
    for name in ("base", "overlays/production"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        found = manifests.objects(manifests.with_component(MONITORING, FOLDER / name, folder))

        assert charts.errors(found, schemas) == []
        assert problems(found) == []
        (config_map,) = [one for one in found if one["metadata"]["name"] == "tollgate-dashboard"]
        assert json.loads(config_map["data"]["tollgate.json"]) == DASHBOARD
        assert next(one for one in found if one["kind"] == "PrometheusRule") == RULE


@pytest.mark.extended
def test_service_monitor_selects_one_service(tmp_path):
    found = manifests.objects(manifests.with_component(MONITORING, FOLDER / "base", tmp_path))
    (monitor,) = charts.of_kind(found, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"]

    selected = [one for one in charts.of_kind(found, "Service") if wanted.items() <= one["metadata"]["labels"].items()]

    assert [one["metadata"]["name"] for one in selected] == ["tollgate-metrics"]
    (port,) = selected[0]["spec"]["ports"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] == port["name"]
    # The alerts name the job.
    assert selected[0]["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "tollgate"
