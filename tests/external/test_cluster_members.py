"""Who is let into a cluster, how replicas find each other, and what they say where they cannot."""

import pytest

from cluster import PATIENT, SECRET
from load import Load
from processes import LOOPBACK, eventually, run
from rls import by

OTHER_SECRET = "another secret of the same length"
USER = ("user", "ann")
PLENTY = [by(("plenty", f"name-{number}")) for number in range(20)]


def test_a_lone_replica_is_a_cluster_of_one_also_where_its_seeds_lead_nowhere(make_cluster, callers, nobody, silence):
    cluster = make_cluster()
    for seeds in ([], [nobody], [silence], ["no.such.host.invalid:8082"]):
        cluster.launch(seeds=seeds)

    for replica in cluster.replicas:
        replica.await_ready()
        assert len(replica.serving()) == 1
        assert [callers.ask(replica.grpc, by(USER, hits=4)).passes for _ in range(3)] == [True, True, False]


def test_replica_with_another_secret_is_not_let_in_and_not_ready(start_cluster, make_cluster, callers):
    cluster = start_cluster(2)
    secret = cluster.folder / "other.secret"
    secret.write_text(OTHER_SECRET)
    members = cluster.replicas[0].serving()

    stranger = cluster.launch(secret=secret)
    cluster.replicas.remove(stranger)
    inside = cluster.replicas[0]
    eventually("it is refused", lambda: cluster.total("tollgate_cluster_links_refused_total") > 0)
    eventually("it says why", lambda: "(untrusted)" in stranger.call(stranger.http, "/readyz").body)
    assert stranger.call(stranger.http, "/readyz").code == 503
    assert all(replica.ready() for replica in cluster.replicas)
    eventually("it counts by itself", lambda: len(stranger.serving()) == 1)

    assert inside.serving() == members
    assert callers.ask(inside.grpc, by(USER, hits=10)).passes
    assert callers.ask(stranger.grpc, by(USER)).remaining == (9,), "it was told nothing"


def test_a_secret_is_replaced_in_three_rolls_and_no_budget_changes(start_cluster, callers):
    cluster = start_cluster(2)
    assert callers.ask(cluster.targets[0], by(USER, hits=4)).passes

    for secrets in ([SECRET, OTHER_SECRET], [OTHER_SECRET, SECRET], [OTHER_SECRET]):
        # Those that run keep what they have read.
        cluster.secret = cluster.folder / f"{len(secrets)}-{secrets[0][:7]}.secret"
        cluster.secret.write_text("\n".join(secrets))
        cluster.roll()

    assert callers.ask(cluster.targets[1], by(USER, hits=6)).passes
    assert not callers.ask(cluster.targets[0], by(USER)).passes


def test_two_that_began_apart_become_one_when_they_meet_and_say_so(start_cluster, callers):
    cluster = start_cluster(1)
    apart = start_cluster(1)
    both = [cluster.replicas[0], apart.replicas[0]]
    assert len({one.view()["view"] for one in both}) == 2
    for one in both:
        assert callers.ask(one.grpc, by(USER, hits=10)).passes

    # Somebody who knows both brings them together.
    cluster.replicas.append(apart.replicas[0])
    cluster.targets.append(apart.replicas[0].grpc)
    cluster.start()

    # Whoever brings them together may have met first the one that gives up.
    assert cluster.total("tollgate_cluster_begun_anew_total") in (1, 2)
    told = "all of this replica are given up"
    assert [any(told in event["message"] for event in one.events()) for one in both].count(True) == 1
    # One of them has kept its counts.
    assert not any(callers.ask(one.grpc, by(USER)).passes for one in cluster.replicas)


def test_replicas_of_an_ipv6_only_machine_share_their_counts(start_cluster, callers):
    cluster = start_cluster(3, host="[::1]")
    assert all(replica.advertised.startswith("[::1]:") for replica in cluster.replicas)

    assert [callers.ask(to, by(USER, hits=4)).passes for to in cluster.targets] == [True, True, False]

    cluster.remove(cluster.replicas[0])
    cluster.settled()
    assert callers.ask(cluster.targets[0], by(USER, hits=0)).remaining == (2,)


def test_replicas_that_come_and_go_leave_no_connection_behind(start_cluster, callers):
    cluster = start_cluster(2, flags=PATIENT)
    stays = cluster.replicas[0]
    opened = stays.open_files()

    with Load(callers, cluster.targets[:1], PLENTY, at_once=2) as load:
        for number in range(6):
            cluster.start()
            if number % 2:
                cluster.kill(cluster.replicas[-1])
            else:
                cluster.remove(cluster.replicas[-1])
            cluster.settled()

    assert not load.failed() and not load.degraded()
    eventually("what was opened is closed", lambda: stays.open_files() <= opened + 1)


def test_a_member_that_the_operator_declares_dead_is_replaced_at_once(start_cluster, callers):
    cluster = start_cluster(3)
    silent = cluster.replicas[2]
    silent.freeze()
    lost = [member["id"] for member in silent_members(cluster.replicas[0], silent)]

    for replica in cluster.replicas[:2]:
        answer = replica.post(f"/cluster/declare-dead?member={lost[0]}")
        assert answer.code == 200, answer.body
    cluster.replicas.remove(silent)
    cluster.settled(5.0)


def silent_members(replica, silent):
    return [member for member in replica.view()["members"] if member["address"] == silent.advertised]


def test_what_a_newcomer_has_kept_of_another_cluster_takes_nothing_away(make_cluster, callers):
    cluster = make_cluster()
    kept = [cluster.folder / f"counters-{number}" for number in range(3)]
    others = [make_cluster() for _ in kept]
    for other, path in zip(others, kept, strict=True):
        other.launch(flags=["--snapshot", path])
    for other in others:
        other.ready()
        assert callers.ask(other.targets[0], by(USER, hits=3)).passes
        other.remove(*other.replicas)

    cluster.start()
    assert callers.ask(cluster.targets[0], by(USER, hits=6)).passes
    # Whoever has the smallest number of all may be among them.
    for path in kept:
        cluster.launch(flags=["--snapshot", path])
    cluster.ready()

    for to in cluster.targets:
        assert callers.ask(to, by(USER, hits=0)).remaining == (4,)
    assert cluster.total("tollgate_cluster_begun_anew_total") == 0


BAD = {
    "a secret file that is not there": (["--cluster-secret-file", "nowhere"], "nowhere"),
    "nothing to know members by": ([], "secret_file"),
    "a certificate without its key": (["--cluster-cert", "cert.pem"], "cluster"),
    "a seed that is no address": (["--cluster-seed", "replica"], "seed"),
    "an address that is no address": (["--cluster-advertise", "replica"], "advertise"),
    "no budget": (["--cluster-forward-budget-max", "0s"], "forward"),
    "backups without a pause": (["--cluster-backup-interval", "1ms"], "backup"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_setting_refuses_to_start_and_is_named(rule_file, tmp_path, what):
    flags, named = BAD[what]
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    listeners = ("grpc", "http", "admin", "metrics", "cluster")
    listen = [part for name in listeners for part in (f"--{name}-listen", f"{LOOPBACK}:0")]
    trust = [] if named in ("nowhere", "secret_file") else ["--cluster-secret-file", secret]

    done = run("serve", "--rules", rule_file("domain: edge"), *listen, *trust, *flags)

    assert done.returncode == 1
    assert named in done.stderr + done.stdout, done.stderr


@pytest.mark.parametrize("text", ["short", "aaaaaaaaaaaaaaaa"])
def test_a_secret_that_is_easily_guessed_refuses_to_start(rule_file, tmp_path, text):
    secret = tmp_path / "secret"
    secret.write_text(text)

    cluster = ["--cluster-listen", f"{LOOPBACK}:0", "--cluster-secret-file", secret]
    done = run("serve", "--rules", rule_file("domain: edge"), *cluster)

    assert done.returncode == 1
    assert "at least 16 bytes" in done.stdout + done.stderr
    assert "openssl rand -base64 32" in done.stdout + done.stderr


def test_settings_of_a_cluster_without_its_address_are_an_error(rule_file):
    done = run("serve", "--rules", rule_file("domain: edge"), "--cluster-seed", "127.0.0.1:8082")

    assert done.returncode == 1
    assert "cluster.listen" in done.stdout + done.stderr
