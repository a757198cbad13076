"""The alerts and the dashboard of deploy/monitoring, and the tools of Prometheus."""

import json
import shutil
import subprocess

import pytest
import yaml

from charts import MONITORING
from processes import ROOT

RULE = yaml.safe_load((MONITORING / "prometheus-rule.yaml").read_text())
ALERTS = {one["alert"]: one for group in RULE["spec"]["groups"] for one in group["rules"]}
DASHBOARD = json.loads((MONITORING / "dashboard.json").read_text())
PANELS = [one for one in DASHBOARD["panels"] if one["type"] != "row"]
QUERIES = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]
METRICS = (ROOT / "docs" / "metrics.md").read_text()


def installed(name, package="prometheus"):
    return shutil.which(name) or pytest.skip(f"{name}: not installed (Debian and Ubuntu: the package {package})")


def promtool(*arguments):
    command = [installed("promtool"), *(str(argument) for argument in arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
