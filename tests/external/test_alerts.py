"""deploy/monitoring: alerts that fire when they should, and that have a runbook."""

import re

import pytest
import yaml

from monitoring import ALERTS, METRICS, promtool
from processes import ROOT


def test_alerts_pass_promtool(rule_file_of_prometheus):
    done = promtool("check", "rules", rule_file_of_prometheus)

    assert done.returncode == 0, done.stderr
    assert f"SUCCESS: {len(ALERTS)} rules found" in done.stdout


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


def test_metrics_page_lists_exactly_the_alerts():
    names = re.findall(r"(\**)`(Tollgate\w+)`", METRICS)

    assert sorted(name for _, name in names) == sorted(ALERTS)
    critical = {name for name, alert in ALERTS.items() if alert["labels"]["severity"] == "critical"}
    assert {name for bold, name in names if bold} == critical


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
    "TollgateCallsFail": counter("tollgate_failed_calls_total", 'method="other",reason="COMPRESSED"'),
    "TollgateSlow": (durations(5), durations(0)),
    "TollgateCountersEvicted": (
        counter("tollgate_counters_evicted_total", 'reason="unexpired"')[0],
        counter("tollgate_counters_evicted_total", 'reason="idle"')[0],
    ),
    "TollgateCountersRefused": counter("tollgate_counters_refused_total"),
    "TollgateOwnLimitsRefused": (
        counter("tollgate_own_limit_changes_total", 'result="no_memory"')[0],
        counter("tollgate_own_limit_changes_total", 'result="other_version"')[0],
    ),
    "TollgateLimitLookupsFail": (
        counter("tollgate_limit_lookups_total", 'outcome="failed"')[0],
        counter("tollgate_limit_lookups_total", 'outcome="absent"')[0],
    ),
    "TollgateClockStepped": counter("tollgate_clock_steps_total", 'direction="back"'),
    "TollgateNoRules": gauge("tollgate_rules_generation", 0, 1),
    "TollgateRulesStale": gauge("tollgate_rules_stale", 1, 0),
    "TollgateRulesDiffer": (hashes("two"), hashes("one")),
    "TollgateRulesCopyErrors": counter("tollgate_rules_url_copy_errors_total"),
    "TollgateXdsDisconnected": gauge("tollgate_xds_connected", 0, 1),
    "TollgateXdsConflicts": gauge("tollgate_xds_conflicts", 2, 0),
    "TollgateXdsUnknownFields": gauge("tollgate_xds_unknown_fields", 2, 0),
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
    "TollgateClusterNotServing": gauge("tollgate_cluster_state", 1, 0, 'state="joining"'),
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
