"""A rule file that is mounted alone, as Kubernetes mounts a `subPath`: it never changes, and the log says so."""

import os
import textwrap

import pytest

import network

RULES = """
    domain: {domain}
    descriptors:
      - key: user
        rate_limit: {{unit: year, requests_per_unit: {limit}}}
"""
MISSING = network.mounts_missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"mount namespaces: {MISSING}")


def replace(file, text):
    """Replaces a file by a rename, as a volume changes."""
    new = file.with_suffix(".new")
    new.write_text(textwrap.dedent(text))
    os.replace(new, file)


def test_file_mounted_alone_is_warned_of_and_keeps_its_rules(start_tollgate, tmp_path):
    rules, volume = tmp_path / "rules", tmp_path / "volume.yaml"
    rules.mkdir()
    mounted, plain = rules / "mounted.yaml", rules / "plain.yaml"
    mounted.touch()
    replace(volume, RULES.format(domain="mounted", limit=2))
    replace(plain, RULES.format(domain="plain", limit=2))
    tollgate = start_tollgate(rules, prefix=network.with_mount(volume, mounted))
    generation = tollgate.rules()["generation"]

    replace(volume, RULES.format(domain="mounted", limit=3))
    replace(plain, RULES.format(domain="plain", limit=3))
    tollgate.await_generation_after(generation)

    warnings = [event for event in tollgate.events() if "is a mount of its own" in event["message"]]
    assert [(event["level"], event["path"]) for event in warnings] == [("WARN", str(mounted))]
    assert "subPath" in warnings[0]["hint"]
    for domain, limit in (("plain", 3), ("mounted", 2)):
        codes = [tollgate.ask(domain, "user=ann").returncode for _ in range(4)]
        assert codes.count(0) == limit, f"the new file of {domain} applies, unless it is mounted alone"
