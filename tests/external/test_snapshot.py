"""Snapshots of counters: restart after shutdown, restart after a kill, and a damaged file."""

from processes import eventually, http_call, run

RULES = """
    domain: edge
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 10, algorithm: fixed_window}
"""


def snapshot_flags(path, every="1h"):
    return ["--snapshot", path, "--store-snapshot-every", every]


def test_restart_after_sigterm_keeps_all_counters(rule_file, start_tollgate, tmp_path):
    flags, rules = snapshot_flags(tmp_path / "counters"), rule_file(RULES)
    first = start_tollgate(rules, flags=flags)
    assert first.ask("edge", "user=ann", "--hits", 7).returncode == 0
    first.terminate()
    assert first.wait() == 0

    second = start_tollgate(rules, flags=flags)

    assert second.remaining(("user", "ann")) == 3
    assert second.ask("edge", "user=ann", "--hits", 4).returncode == 2


def test_killed_process_loses_only_hits_after_last_snapshot(rule_file, start_tollgate, tmp_path):
    snapshot, rules = tmp_path / "counters", rule_file(RULES)
    flags = snapshot_flags(snapshot, every="50ms")
    first = start_tollgate(rules, flags=flags)
    assert first.ask("edge", "user=ann", "--hits", 7).returncode == 0
    # At least one complete snapshot begins after the charge.
    for _ in range(3):
        written = snapshot.stat().st_mtime_ns if snapshot.exists() else 0
        eventually("another snapshot", lambda: snapshot.exists() and snapshot.stat().st_mtime_ns != written)
    first.kill()

    second = start_tollgate(rules, flags=flags)

    assert second.remaining(("user", "ann")) == 3


def test_truncated_snapshot_is_set_aside_and_process_starts(rule_file, start_tollgate, tmp_path):
    snapshot, rules = tmp_path / "counters", rule_file(RULES)
    first = start_tollgate(rules, flags=snapshot_flags(snapshot))
    assert first.ask("edge", "user=ann").returncode == 0
    first.terminate()
    assert first.wait() == 0
    whole = snapshot.read_bytes()
    snapshot.write_bytes(whole[: len(whole) // 2])

    second = start_tollgate(rules, flags=snapshot_flags(snapshot))

    assert second.remaining(("user", "ann")) == 10
    assert (tmp_path / "counters.bad").read_bytes() == whole[: len(whole) // 2]
    assert any(event.get("level") == "ERROR" for event in second.events())


def test_store_page_shows_number_of_counters(rule_file, start_tollgate):
    tollgate = start_tollgate(rule_file(RULES))
    for user in range(5):
        assert tollgate.ask("edge", f"user={user}").returncode == 0

    stats = http_call(tollgate.admin, "/store").json()

    assert stats["live"] == 5 and stats["bytes"] > 0
    assert stats["evicted_unexpired"] == stats["refused_full"] == 0


def test_unusable_memory_limit_refuses_start(rule_file):
    for size in ("4KiB", "100000TiB", "much"):
        refused = run("serve", "--rules", rule_file(RULES), "--store-memory-limit", size)
        assert refused.returncode == 64
        assert f"--store-memory-limit: `{size}` is not allowed" in refused.stderr
