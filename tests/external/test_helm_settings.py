"""Settings in the values of the Helm chart."""

import re

import pytest

import charts
from manifest_checks import Overlay
from processes import ROOT

pytestmark = pytest.mark.extended


def test_every_setting_becomes_a_variable(tmp_path):
    page = (ROOT / "docs" / "settings.md").read_text()
    catalog = dict(re.findall(r"^\| `([a-z_.]+)` \| [^|]+ \| `(\w+)` ", page, re.MULTILINE))
    settings, refused = {}, set()
    for name in catalog:
        *sections, setting = name.split(".")
        value = {setting: f"value of {name}"}
        for section in reversed(sections):
            value = {section: value}
        if name.endswith(".listen") or sections[0] in ("rules", "cluster", "store") or "tls" in setting:
            done = charts.render({"settings": value}, tmp_path)
            if f"settings.{name} is set by the chart" in done.stderr:
                refused.add(name)
                continue
        within = settings
        for section in sections:
            within = within.setdefault(section, {})
        within[setting] = f"value of {name}"

    overlay = Overlay(charts.objects({"settings": settings}, tmp_path))

    expected = {catalog[name]: f"value of {name}" for name in catalog if name not in refused}
    assert overlay.variables.items() >= expected.items()
    assert refused == {
        *("rules.path", "grpc.listen", "http.listen", "metrics.listen"),
        *("grpc.tls_cert", "grpc.tls_key", "grpc.tls_client_ca"),
        *(f"cluster.{name}" for name in ("listen", "advertise", "seed", "secret_file", "cert", "key", "ca")),
        *("store.kind", "store.redis.urls", "store.redis.mode", "store.redis.sentinel_service"),
        *("store.redis.username", "store.redis.password_file", "store.redis.sentinel_password_file"),
        *("store.redis.ca", "store.redis.cert", "store.redis.key", "store.redis.prefix"),
    }


def test_settings_keep_their_form(tmp_path):
    values = {
        "settings": {
            "grpc": {"max_connections": 5000000, "socket_mode": "0660", "tls_client_san": ["a.example", "b.example"]},
            "headers": {"ietf": "all", "retry_after": False},
        }
    }

    variables = Overlay(charts.objects(values, tmp_path)).variables

    assert variables["TOLLGATE_GRPC__MAX_CONNECTIONS"] == "5000000"
    assert variables["TOLLGATE_GRPC__SOCKET_MODE"] == "0660"
    assert variables["TOLLGATE_GRPC__TLS_CLIENT_SAN"] == "a.example,b.example"
    assert variables["TOLLGATE_HEADERS__IETF"] == "all"
    assert variables["TOLLGATE_HEADERS__RETRY_AFTER"] == "false"
    assert variables["TOLLGATE_DRAIN__DELAY"] == "10s", "other settings keep their defaults"
