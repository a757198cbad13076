"""The Helm chart, rendered: valid for Kubernetes, and the same objects as deploy/kubernetes for the same choices."""

import pytest
import yaml

import charts
import manifests
from charts import CHART, MONITORED, MONITORING, normalised, of_kind
from manifest_checks import OPERATOR_SECRETS, Overlay, problems
from manifests import FOLDER
from processes import LOOPBACK, ROOT, eventually, http_call, run

pytestmark = pytest.mark.extended

BASE, PRODUCTION = FOLDER / "base", FOLDER / "overlays" / "production"
PRODUCTION_VALUES = CHART / "values-production.yaml"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
ONE_RULE = {
    "domain": "edge",
    "descriptors": [{"key": "user", "rate_limit": {"unit": "second", "requests_per_unit": 5}}],
}

# Together they set every value.
CASES = {
    "defaults": {},
    "production": PRODUCTION_VALUES,
    "monitoring": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}, "interval": "15s"},
        "prometheusRule": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "runbooks": "https://git.example.org/tollgate/blob/main",
        },
        "dashboard": {"enabled": True, "labels": {"grafana": "load"}, "annotations": {"folder": "limits"}},
    },
    "an image by digest": {
        "image": {
            "repository": "registry.example.com/tollgate",
            "tag": "0.1.0",
            "digest": f"sha256:{'a' * 64}",
            "pullPolicy": "Always",
            "pullSecrets": ["registry"],
        }
    },
    "inline rules and settings": {
        "replicas": 5,
        "ruleFiles": {"edge.yaml": ONE_RULE, "other.yml": "domain: other\ndescriptors: []\n"},
        "settings": {
            "headers": {"x_ratelimit": True},
            "log": {"level": "debug"},
            "admin": {"token_file": "/etc/tollgate/admin/token"},
        },
        "extraVolumes": [{"name": "admin", "secret": {"secretName": "tollgate-admin"}}],
        "extraVolumeMounts": [{"name": "admin", "mountPath": "/etc/tollgate/admin", "readOnly": True}],
        "extraEnv": [{"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": "http://collector:4317"}],
        "listenAddress": "0.0.0.0",
    },
    "objects of the operator": {
        "ruleConfigMap": "rules",
        "clusterSecret": {"existing": "secrets", "key": "tollgate"},
        "serverTls": {"secret": "certificates", "clientCertificates": False},
        "settings": {"http": {"tls_cert": "/etc/tollgate/tls/tls.crt", "tls_key": "/etc/tollgate/tls/tls.key"}},
    },
    "certificates between replicas": {"peerCertificateSecret": "tollgate-peers-tls"},
    "Redis": {"store": {"kind": "redis", "redis": {"urls": ["redis://redis"]}}},
    "a cluster of Redis with TLS": {
        "store": {
            "kind": "redis",
            "redis": {
                "urls": ["rediss://redis-1:6380", "rediss://redis-2:6380", "rediss://redis-3:6381"],
                "mode": "cluster",
                "username": "tollgate",
                "passwordSecret": "tollgate-redis",
                "passwordKey": "words",
                "tlsSecret": "tollgate-redis-tls",
                "clientCertificate": True,
                "prefix": "edge:",
            },
        },
        "settings": {"store": {"redis": {"timeout": "200ms", "connections": 4}}},
    },
    "sentinels": {
        "store": {
            "kind": "redis",
            "redis": {
                "urls": ["redis://sentinel-1:26379", "redis://sentinel-2:26379"],
                "mode": "sentinel",
                "sentinelService": "counters",
                "passwordSecret": "tollgate-redis",
                "sentinelPasswordKey": "sentinels",
            },
        },
        "networkPolicy": {"extraEgress": [{"ports": [{"port": 6379}]}]},
    },
    "an autoscaler": {
        "autoscaling": {
            "enabled": True,
            "minReplicas": 2,
            "maxReplicas": 4,
            "cpuUtilization": 50,
            "behavior": {"scaleUp": {"policies": [{"type": "Percent", "value": 50, "periodSeconds": 30}]}},
        }
    },
    "a pod for certain nodes": {
        "resources": {"requests": {"cpu": 2}, "limits": {"memory": "2Gi"}, "claims": [{"name": "claim"}]},
        "spread": {"nodes": "DoNotSchedule", "zones": "DoNotSchedule"},
        "terminationGracePeriodSeconds": 90,
        "podAnnotations": {"example.com/owner": "edge"},
        "podLabels": {"team": "edge", "app.kubernetes.io/name": "ignored, because selectors need it"},
        "nodeSelector": {"pool": "edge"},
        "tolerations": [{"key": "edge", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "edge",
        "service": {
            "type": "LoadBalancer",
            "annotations": {"example.com/internal": "true"},
            "appProtocol": "kubernetes.io/h2c",
        },
    },
    "another network": {
        "networkPolicy": {
            "clientNamespaceLabels": {"calls": "yes", "tollgate-clients": None},
            "metricsNamespaceLabels": {"scrapes": "yes", "kubernetes.io/metadata.name": None},
            "extraIngress": [{"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": "grpc"}]}],
            "extraEgress": [{"ports": [{"port": 4317}]}],
        }
    },
    "no policy and no budget": {"networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}},
}


@pytest.fixture(scope="session")
def all_schemas(schemas):
    """Schemas for kubeconform, with those of the Prometheus operator."""
    return charts.write_operator_schemas(schemas)


@pytest.mark.parametrize("case", CASES)
def test_chart_passes_all_validators(case, tmp_path, all_schemas):
    found = charts.objects(CASES[case], tmp_path)

    assert charts.errors(found, all_schemas) == []


@pytest.mark.parametrize("case", CASES)
def test_chart_passes_helm_lint(case, tmp_path):
    arguments = charts.given(CASES[case], tmp_path)
    done = charts.helm("lint", CHART, "--strict", "--kube-version", charts.VERSION, *arguments)

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("case", ["defaults", "production", "monitoring", "certificates between replicas", "Redis"])
def test_chart_is_consistent_with_tollgate(case, tmp_path):
    found = charts.objects(CASES[case], tmp_path)

    assert problems([one for one in found if one["kind"] != "Secret"]) == []


# The values and the directories of kustomize that make the same choices.
SAME_CHOICES = {
    "base": ({}, [BASE]),
    "production": (PRODUCTION_VALUES, [PRODUCTION]),
    "certificates between replicas": (
        {"peerCertificateSecret": "tollgate-peers-tls"},
        [BASE, FOLDER / "components" / "peer-certificates"],
    ),
    "redis": (
        {"store": {"kind": "redis", "redis": {"urls": ["redis://redis:6379"], "passwordSecret": "tollgate-redis"}}},
        [BASE, FOLDER / "components" / "redis"],
    ),
    "monitoring": (MONITORED, [BASE, MONITORING]),
}


@pytest.mark.parametrize("choice", SAME_CHOICES)
def test_chart_renders_the_objects_of_kustomize(choice, tmp_path):
    values, (folder, *components) = SAME_CHOICES[choice]
    if components:
        folder = manifests.with_component(components[0], folder, tmp_path)

    found = [one for one in charts.objects(values, tmp_path) if one["kind"] != "Secret"]

    expected = normalised(manifests.objects(folder))
    assert normalised(found).keys() == expected.keys()
    for key, rendered in normalised(found).items():
        assert rendered == expected[key], key


def leaves(schema, path=()):
    """The paths of all values in the schema, without the contents of free objects."""
    for name, one in schema["properties"].items():
        if "properties" in one:
            yield from leaves(one, (*path, name))
        else:
            yield (*path, name)


def value_at(path, values):
    for name in path:
        if not isinstance(values, dict) or name not in values:
            return None
        values = values[name]
    return values


def test_cases_set_every_value():
    given = [yaml.safe_load(one.read_text()) if one == PRODUCTION_VALUES else one for one in CASES.values()]
    changed = [
        path
        for path in leaves(charts.schema())
        if not any(value_at(path, one) not in (None, value_at(path, VALUES)) for one in given)
    ]
    # Helm sets it.
    assert changed == [("global",)]


def described(schema, path=""):
    for name, one in schema.get("properties", {}).items():
        if "additionalProperties" not in schema or schema["additionalProperties"]:
            continue
        yield f"{path}{name}", one.get("description", "")
        yield from described(one, f"{path}{name}.")


def test_schema_describes_every_value():
    descriptions = dict(described(charts.schema()))

    assert len(descriptions) > 60
    assert [name for name, text in descriptions.items() if not text.endswith(".")] == []
    without_default = {("global",), ("resources", "claims")}
    assert {path for path in leaves(charts.schema()) if value_at(path, VALUES) is None} == without_default


# Values that the chart refuses, and a part of the message.
REFUSED = {
    "a misspelled value": ({"replica": 3}, "'replica' not allowed"),
    "a misspelled nested value": ({"image": {"tags": "1"}}, "'tags' not allowed"),
    "no replicas": ({"replicas": 0}, "minimum"),
    "a bad digest": ({"image": {"digest": "sha256:1"}}, "does not match"),
    "a rule file that is no YAML file": ({"ruleFiles": {"edge.json": "{}"}}, "does not match"),
    "rules in two places": ({"ruleFiles": {"a.yaml": "domain: a"}, "ruleConfigMap": "b"}, "exclude each other"),
    "a setting of the chart": ({"settings": {"cluster": {"seed": "a:1"}}}, "settings.cluster.seed is set by the chart"),
    "a setting without a section": ({"settings": {"replicas": 3}}, "want object"),
    "two kinds of trust": (
        {"clusterSecret": {"existing": "a"}, "peerCertificateSecret": "b"},
        "replaces the secret of the cluster",
    ),
    "Redis without an address": ({"store": {"kind": "redis"}}, "store.kind redis needs store.redis.urls"),
    "addresses of Redis and counters in memory": ({"store": {"redis": {"urls": ["redis://a"]}}}, "memory has none"),
    "a password in an address": ({"store": {"redis": {"urls": ["redis://:word@a"]}}}, "does not match"),
    "a secret of the cluster beside Redis": (
        {"store": {"kind": "redis", "redis": {"urls": ["redis://a"]}}, "clusterSecret": {"existing": "a"}},
        "there is no cluster",
    ),
    "a setting of the shared store": (
        {"settings": {"store": {"redis": {"prefix": "a:"}}}},
        "settings.store.redis.prefix is set by the chart",
    ),
    "a range without replicas": ({"autoscaling": {"enabled": True, "minReplicas": 12}}, "must be less than"),
    "memory without a bound": ({"resources": {"limits": {"memory": None}}}, "missing property 'memory'"),
    "a grace period shorter than the drain": ({"terminationGracePeriodSeconds": 45}, "must be longer than"),
    "an unknown spread": ({"spread": {"nodes": "Never"}}, "must be one of"),
    "a variable of the chart": ({"extraEnv": [{"name": "POD_IP", "value": "10.0.0.1"}]}, "not"),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_chart_refuses_bad_values(fault, tmp_path):
    values, message = REFUSED[fault]

    done = charts.render(values, tmp_path)

    assert done.returncode != 0
    assert message in done.stderr


def rules_of(found, folder):
    """Writes the rule files of the ConfigMap to a directory."""
    (config_map,) = [one for one in of_kind(found, "ConfigMap") if one["metadata"]["name"].endswith("-rules")]
    for name, text in config_map["data"].items():
        (folder / name).write_text(text)
    return folder


def test_rules_as_yaml_and_as_text_compile(tmp_path):
    folder = tmp_path / "rules"
    folder.mkdir()
    limit = {"unit": "second", "requests_per_unit": 123456789}
    structured = {"domain": "edge", "descriptors": [{"key": "user", "rate_limit": limit}]}
    text = (ROOT / "deploy" / "rules" / "example.yaml").read_text().replace("domain: edge", "domain: other")

    found = charts.objects({"ruleFiles": {"edge.yaml": structured, "other.yaml": text}}, tmp_path)

    done = run("check", rules_of(found, folder))
    assert done.returncode == 0, done
    assert (folder / "other.yaml").read_text() == text, "text keeps its comments"
    # Written with an exponent, a number is no whole number for the program.
    assert "123456789" in (folder / "edge.yaml").read_text()


def test_runbooks_of_alerts_are_in_the_given_copy(tmp_path):
    found = charts.objects(CASES["monitoring"], tmp_path)

    (rule,) = charts.of_kind(found, "PrometheusRule")

    urls = [one["annotations"]["runbook_url"] for group in rule["spec"]["groups"] for one in group["rules"]]
    assert urls and all(url.startswith("https://git.example.org/tollgate/blob/main/docs/") for url in urls)


def test_example_rules_are_active_without_others(tmp_path):
    found = charts.objects({}, tmp_path)

    (config_map,) = of_kind(found, "ConfigMap")
    assert config_map["data"] == {"edge.yaml": (BASE / "rules" / "edge.yaml").read_text()}


def test_values_of_redis_become_settings_and_volumes(tmp_path):
    overlay = Overlay(charts.objects(CASES["a cluster of Redis with TLS"], tmp_path))

    store = {name: value for name, value in overlay.variables.items() if "STORE" in name}
    assert store == {
        "TOLLGATE_STORE__KIND": "redis",
        "TOLLGATE_STORE__REDIS__URLS": "rediss://redis-1:6380,rediss://redis-2:6380,rediss://redis-3:6381",
        "TOLLGATE_STORE__REDIS__MODE": "cluster",
        "TOLLGATE_STORE__REDIS__USERNAME": "tollgate",
        "TOLLGATE_STORE__REDIS__PASSWORD_FILE": "/etc/tollgate/redis/words",
        "TOLLGATE_STORE__REDIS__CA": "/etc/tollgate/redis-tls/ca.crt",
        "TOLLGATE_STORE__REDIS__CERT": "/etc/tollgate/redis-tls/tls.crt",
        "TOLLGATE_STORE__REDIS__KEY": "/etc/tollgate/redis-tls/tls.key",
        "TOLLGATE_STORE__REDIS__PREFIX": "edge:",
        "TOLLGATE_STORE__REDIS__TIMEOUT": "200ms",
        "TOLLGATE_STORE__REDIS__CONNECTIONS": "4",
    }
    mounted = {mount["name"]: mount["mountPath"] for mount in overlay.container["volumeMounts"]}
    assert mounted.items() >= {
        ("redis-password", "/etc/tollgate/redis"),
        ("redis-tls", "/etc/tollgate/redis-tls"),
    }
    ports = [port["port"] for rule in overlay.one("NetworkPolicy")["spec"]["egress"] for port in rule["ports"]]
    assert ports == [6380, 6381, 53, 53]


def test_program_starts_with_the_variables_of_the_chart(start_pod, tmp_path):
    values = {"settings": {"headers": {"x_ratelimit": True}, "grpc": {"max_connections": 200}}}
    found = charts.objects(values, tmp_path)
    folder = tmp_path / "rules"
    folder.mkdir()

    http = start_pod(Overlay(found), rules_of(found, folder))

    eventually("the pod is ready", lambda: http_call(http, "/readyz").code == 200)


def test_program_accepts_the_variables_of_the_chart_for_redis(start_pod, tmp_path):
    # No server listens there: the store is the only reason not to be ready.
    redis = {"urls": [f"redis://{LOOPBACK}:1"], "mode": "sentinel", "sentinelService": "a", "username": "b"}
    found = charts.objects({"store": {"kind": "redis", "redis": redis | {"prefix": "edge:"}}}, tmp_path)
    folder = tmp_path / "rules"
    folder.mkdir()

    http = start_pod(Overlay(found), rules_of(found, folder))

    eventually("the store is missing", lambda: "store" in http_call(http, "/readyz").body)


def test_helm_page_names_every_secret_and_value():
    page = (ROOT / "docs" / "helm.md").read_text()

    for name in OPERATOR_SECRETS - {"tollgate-peers-tls", "tollgate-tls"}:
        assert f"`{name}`" in page
    for name in charts.schema()["properties"].keys() - {"global"}:
        assert f"`{name}" in page, f"docs/helm.md does not name {name}"
