"""Counters that outlive their process, through its good end, its bad end, and a damaged file."""

from processes import eventually, http_call, run

RULES = """
    domain: edge
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 10, algorithm: fixed_window}
"""


def kept(path, every="1h"):
    return ["--snapshot", path, "--store-snapshot-every", every]


def test_sigterm_and_a_restart_forget_nothing(rule_file, start_tollgate, tmp_path):
    flags, rules = kept(tmp_path / "counters"), rule_file(RULES)
    first = start_tollgate(rules, flags=flags)
    assert first.ask("edge", "user=ann", "--hits", 7).returncode == 0
    first.terminate()
    assert first.wait() == 0

    second = start_tollgate(rules, flags=flags)

    assert second.remaining(("user", "ann")) == 3
    assert second.ask("edge", "user=ann", "--hits", 4).returncode == 2


def test_a_killed_process_forgets_at_most_what_came_after_its_last_snapshot(rule_file, start_tollgate, tmp_path):
    snapshot, rules = tmp_path / "counters", rule_file(RULES)
    flags = kept(snapshot, every="50ms")
    first = start_tollgate(rules, flags=flags)
    assert first.ask("edge", "user=ann", "--hits", 7).returncode == 0
    # Two more are surely begun after the charge.
    for _ in range(3):
        written = snapshot.stat().st_mtime_ns if snapshot.exists() else 0
        eventually("another snapshot", lambda: snapshot.exists() and snapshot.stat().st_mtime_ns != written)
    first.kill()

    second = start_tollgate(rules, flags=flags)

    assert second.remaining(("user", "ann")) == 3


def test_a_torn_snapshot_is_set_aside_and_the_process_starts(rule_file, start_tollgate, tmp_path):
    snapshot, rules = tmp_path / "counters", rule_file(RULES)
    first = start_tollgate(rules, flags=kept(snapshot))
    assert first.ask("edge", "user=ann").returncode == 0
    first.terminate()
    assert first.wait() == 0
    whole = snapshot.read_bytes()
    snapshot.write_bytes(whole[: len(whole) // 2])

    second = start_tollgate(rules, flags=kept(snapshot))

    assert second.remaining(("user", "ann")) == 10
    assert (tmp_path / "counters.bad").read_bytes() == whole[: len(whole) // 2]
    assert any(event.get("level") == "ERROR" for event in second.events())


def test_the_operators_page_tells_how_many_counters_there_are(rule_file, start_tollgate):
    tollgate = start_tollgate(rule_file(RULES))
    for user in range(5):
        assert tollgate.ask("edge", f"user={user}").returncode == 0

    figures = http_call(tollgate.admin, "/store").json()

    assert figures["live"] == 5 and figures["bytes"] > 0
    assert figures["evicted_unexpired"] == figures["refused_full"] == 0


def test_a_memory_limit_beyond_the_machine_or_next_to_nothing_refuses_to_start(rule_file):
    for size in ("4KiB", "100000TiB", "much"):
        refused = run("serve", "--rules", rule_file(RULES), "--store-memory-limit", size)
        assert refused.returncode == 1
        assert f"--store-memory-limit: `{size}` is not allowed" in refused.stderr
