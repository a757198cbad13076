"""deploy/monitoring: a dashboard of a sound structure, within the schema of Grafana."""

import enum
import itertools
import json
import re
import typing

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as grafana

from monitoring import DASHBOARD, PANELS


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
