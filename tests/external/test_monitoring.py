"""deploy/monitoring: alerts and queries name metrics that exist, and find series in a real Prometheus."""

import contextlib
import itertools
import json
import re
import socket
import urllib.parse

import pytest
import yaml

import charts
import manifests
from charts import MONITORING
from manifest_checks import problems
from manifests import FOLDER
from monitoring import ALERTS, DASHBOARD, METRICS, PANELS, QUERIES, RULE, installed
from processes import LOOPBACK, Process, eventually, http_call

# Labels that a scrape adds.
TARGET_LABELS = {"job", "instance", "namespace", "service"}


def catalog():
    """The labels of each metric, from the table that a test of the program compares with its catalog."""
    rows = re.findall(r"^\| `((?:tollgate|process)_\w+)(?:\{([^}]*)\})?` \| (Histogram\. )?", METRICS, re.MULTILINE)
    found = {}
    for name, labels, is_histogram in rows:
        labels = set(re.findall(r"\w+", labels))
        if is_histogram:
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
# No store names limits.
EMPTY |= {"Look-ups of limits", "Decisions by cached limits", "Keys with cached limits"}
EMPTY |= {"Age of the store's last answer"}
# The replicas serve no quotas.
EMPTY |= {"Clients with quotas", "Reported requests", "Parts of limits", "Reports and assignments"}
EMPTY |= {"Time until shares are adjusted", "Refused streams and buckets", "Memory of quotas"}


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
