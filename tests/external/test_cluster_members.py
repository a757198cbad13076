"""Cluster membership, discovery of peers, and errors of both."""

import pytest

from cluster import SECRET
from load import Load
from processes import LOOPBACK, eventually, run
from rls import descriptor

OTHER_SECRET = "another secret of the same length"
USER = ("user", "ann")
PLENTY = [descriptor(("plenty", f"name-{number}")) for number in range(20)]


@pytest.mark.extended
def test_replica_with_unreachable_seeds_is_a_cluster_of_one(make_cluster, callers, closed_port, silent_server):
    cluster = make_cluster()
    for seeds in ([], [closed_port], [silent_server], ["no.such.host.invalid:8082"]):
        cluster.launch(seeds=seeds)

    for replica in cluster.replicas:
        replica.await_ready()
        assert len(replica.serving()) == 1
        assert [callers.call(replica.grpc, descriptor(USER, hits=4)).passes for _ in range(3)] == [True, True, False]


def test_replica_with_other_secret_is_rejected_and_not_ready(start_cluster, make_cluster, callers):
    cluster = start_cluster(2)
    secret = cluster.folder / "other.secret"
    secret.write_text(OTHER_SECRET)
    members = cluster.replicas[0].serving()

    stranger = cluster.launch(secret=secret)
    cluster.replicas.remove(stranger)
    inside = cluster.replicas[0]
    eventually("the stranger is refused", lambda: cluster.total("tollgate_cluster_links_refused_total") > 0)
    eventually(
        "the readiness probe has the reason", lambda: "(untrusted)" in stranger.call(stranger.http, "/readyz").body
    )
    assert stranger.call(stranger.http, "/readyz").code == 503
    assert all(replica.is_ready() for replica in cluster.replicas)
    eventually("the stranger is a cluster of one", lambda: len(stranger.serving()) == 1)

    assert inside.serving() == members
    assert callers.call(inside.grpc, descriptor(USER, hits=10)).passes
    assert callers.call(stranger.grpc, descriptor(USER)).remaining == (9,), "the stranger has its own counters"


@pytest.mark.extended
def test_secret_rotation_in_three_rollouts_keeps_counters(start_cluster, callers):
    cluster = start_cluster(2)
    assert callers.call(cluster.targets[0], descriptor(USER, hits=4)).passes

    for secrets in ([SECRET, OTHER_SECRET], [OTHER_SECRET, SECRET], [OTHER_SECRET]):
        # Running replicas keep the secrets that they have read.
        cluster.secret = cluster.folder / f"{len(secrets)}-{secrets[0][:7]}.secret"
        cluster.secret.write_text("\n".join(secrets))
        cluster.roll()

    assert callers.call(cluster.targets[1], descriptor(USER, hits=6)).passes
    assert not callers.call(cluster.targets[0], descriptor(USER)).passes


@pytest.mark.extended
def test_separately_bootstrapped_clusters_merge_and_older_one_wins(start_cluster, callers):
    cluster = start_cluster(2)
    apart = start_cluster(1)
    older, newer = cluster.replicas[0], apart.replicas[0]
    assert older.view()["view"] != newer.view()["view"]
    assert callers.call(older.grpc, descriptor(USER, hits=4)).passes
    assert callers.call(newer.grpc, descriptor(USER, hits=10)).passes

    # A replica with both as seeds connects them.
    cluster.replicas.append(newer)
    cluster.targets.append(newer.grpc)
    cluster.start()

    # The new replica may have joined the newer cluster first.
    assert cluster.total("tollgate_cluster_begun_anew_total") in (1, 2)
    expected = "discarded all counters of this replica"
    discarded = [any(expected in event["message"] for event in one.events()) for one in (older, newer)]
    assert discarded == [False, True]
    assert {callers.call(to, descriptor(USER, hits=0)).remaining for to in cluster.targets} == {(6,)}


@pytest.mark.extended
def test_replicas_on_ipv6_only_host_share_counters(start_cluster, callers):
    cluster = start_cluster(3, host="[::1]")
    assert all(replica.advertised.startswith("[::1]:") for replica in cluster.replicas)

    assert [callers.call(to, descriptor(USER, hits=4)).passes for to in cluster.targets] == [True, True, False]

    cluster.remove(cluster.replicas[0])
    cluster.await_settled()
    assert callers.call(cluster.targets[0], descriptor(USER, hits=0)).remaining == (2,)


@pytest.mark.extended
@pytest.mark.timing
def test_joining_and_leaving_replicas_leak_no_connection(start_cluster, callers):
    cluster = start_cluster(2)
    stays = cluster.replicas[0]
    opened = stays.open_files()

    with Load(callers, cluster.targets[:1], PLENTY, concurrency=2) as load:
        for number in range(6):
            cluster.start()
            if number % 2:
                cluster.kill(cluster.replicas[-1])
            else:
                cluster.remove(cluster.replicas[-1])
            cluster.await_settled()

    assert not load.failed()
    eventually("no files stay open", lambda: stays.open_files() <= opened + 1)


@pytest.mark.extended
def test_member_declared_dead_is_replaced_at_once(start_cluster, callers):
    cluster = start_cluster(3)
    silent = cluster.replicas[2]
    silent.freeze()
    lost = [member["id"] for member in silent_members(cluster.replicas[0], silent)]

    for replica in cluster.replicas[:2]:
        response = replica.post(f"/cluster/declare-dead?member={lost[0]}")
        assert response.code == 200, response.body
    cluster.replicas.remove(silent)
    cluster.await_settled(5.0)


def silent_members(replica, silent):
    return [member for member in replica.view()["members"] if member["address"] == silent.advertised]


@pytest.mark.extended
def test_snapshot_of_other_cluster_does_not_change_counters(make_cluster, callers):
    cluster = make_cluster()
    snapshots = [cluster.folder / f"counters-{number}" for number in range(3)]
    others = [make_cluster() for _ in snapshots]
    for other, path in zip(others, snapshots, strict=True):
        other.launch(flags=["--snapshot", path])
    for other in others:
        other.await_ready()
        assert callers.call(other.targets[0], descriptor(USER, hits=3)).passes
        other.remove(*other.replicas)

    cluster.start()
    assert callers.call(cluster.targets[0], descriptor(USER, hits=6)).passes
    # The replica with the smallest id may be among them.
    for path in snapshots:
        cluster.launch(flags=["--snapshot", path])
    cluster.await_ready()

    for to in cluster.targets:
        assert callers.call(to, descriptor(USER, hits=0)).remaining == (4,)
    assert cluster.total("tollgate_cluster_begun_anew_total") == 0


BAD = {
    "a missing secret file": (["--cluster-secret-file", "nowhere"], "nowhere"),
    "no secret and no certificates": ([], "secret_file"),
    "a certificate without its key": (["--cluster-cert", "cert.pem"], "cluster"),
    "a malformed seed": (["--cluster-seed", "replica"], "seed"),
    "a malformed address": (["--cluster-advertise", "replica"], "advertise"),
    "no budget": (["--cluster-forward-budget-max", "0s"], "forward"),
    "a backup interval below the minimum": (["--cluster-backup-interval", "1ms"], "backup"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_cluster_setting_refuses_start_and_is_named(rule_file, tmp_path, what):
    flags, named = BAD[what]
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    listeners = ("grpc", "http", "admin", "metrics", "cluster")
    listen = [part for name in listeners for part in (f"--{name}-listen", f"{LOOPBACK}:0")]
    trust = [] if named in ("nowhere", "secret_file") else ["--cluster-secret-file", secret]

    done = run("serve", "--rules", rule_file("domain: edge"), *listen, *trust, *flags)

    assert done.returncode == (1 if named == "nowhere" else 64)
    assert named in done.stderr + done.stdout, done.stderr


@pytest.mark.parametrize("text", ["short", "aaaaaaaaaaaaaaaa"])
def test_weak_secret_refuses_start(rule_file, tmp_path, text):
    secret = tmp_path / "secret"
    secret.write_text(text)

    cluster = ["--cluster-listen", f"{LOOPBACK}:0", "--cluster-secret-file", secret]
    # Another program may have the default ports.
    listen = [part for name in ("grpc", "http", "admin", "metrics") for part in (f"--{name}-listen", f"{LOOPBACK}:0")]
    done = run("serve", "--rules", rule_file("domain: edge"), *cluster, *listen)

    assert done.returncode == 1
    assert "at least 16 bytes" in done.stdout + done.stderr
    assert "openssl rand -base64 32" in done.stdout + done.stderr


def test_cluster_settings_without_listen_address_are_an_error(rule_file):
    done = run("serve", "--rules", rule_file("domain: edge"), "--cluster-seed", "127.0.0.1:8082")

    assert done.returncode == 64
    assert "cluster.listen" in done.stdout + done.stderr
