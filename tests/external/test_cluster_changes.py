"""Planned changes: replicas are replaced, added, removed and stopped, and every counter keeps its value."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from bootstraps import bootstrap, header, rate_limit, route
from cluster import DETAILED_ANSWERS
from load import EdgeLoad, Load
from processes import LOOPBACK, eventually
from rls import descriptor, rate_limit_request

KEYS = [(key, f"name-{number}") for key in ("user", "bucket") for number in range(100)]


@pytest.fixture
def free_address():
    """A loopback address with a free port."""

    def free_address():
        with socket.socket() as taken:
            taken.bind((LOOPBACK, 0))
            return f"{LOOPBACK}:{taken.getsockname()[1]}"

    return free_address


@pytest.fixture
def charge_all(callers):
    """Charges hits to each key, spread over the replicas, and returns how many calls passed."""

    def charge_all(cluster, hits, keys=KEYS):
        targets = cluster.targets
        calls = [
            (targets[n % len(targets)], rate_limit_request(descriptor(key, hits=hits))) for n, key in enumerate(keys)
        ]
        responses = callers.call_all(calls)
        assert not [response for response in responses if response.error]
        return sum(response.passes for response in responses)

    return charge_all


@pytest.fixture
def assert_remaining(charge_all):
    """Asserts that exactly `hits` more hits of each key pass."""

    def assert_remaining(cluster, hits, keys=KEYS):
        assert charge_all(cluster, hits, keys) == len(keys)
        assert charge_all(cluster, 1, keys) == 0

    return assert_remaining


# In the core, the example of a cluster and Envoy prove that a roll keeps limits exact.
@pytest.mark.extended
def test_replacing_all_replicas_keeps_exact_remaining(start_cluster, charge_all, assert_remaining):
    cluster = start_cluster()
    former = cluster.replicas[0].serving()
    assert charge_all(cluster, 4) == len(KEYS)

    cluster.roll()

    assert not set(former) & set(cluster.replicas[0].serving())
    assert_remaining(cluster, 6)


@pytest.mark.extended
def test_scaling_3_to_5_to_2_replicas_keeps_exact_remaining(start_cluster, charge_all, assert_remaining):
    cluster = start_cluster()
    assert charge_all(cluster, 3) == len(KEYS)

    cluster.start(2)
    assert charge_all(cluster, 3) == len(KEYS)
    # These replicas include the first owners.
    cluster.remove(*cluster.replicas[:3])
    cluster.await_settled()

    assert_remaining(cluster, 4)


# The calls of the test while replicas leave begin at once and end within this. The manifests have 10 s.
LONG_DELAY = ("5s", "45s")


# Many processes leave at once: beside other tests, owners wait for a core for longer than a check waits for them.
@pytest.mark.extended
@pytest.mark.timing
@pytest.mark.parametrize(
    "leave,delay,timeout",
    [
        # The last hits may be in no backup: then only replicas that leave know them.
        ("at once", "0s", "25s"),
        ("at once", "100ms", "25s"),
        # Owners and backups have equal counters, and no hit may count twice.
        ("backed up", "100ms", "25s"),
        # All is backed up within the delay, before the replicas leave.
        ("at once", *LONG_DELAY),
    ],
)
@pytest.mark.parametrize("total,leaving", [(3, 2), (5, 3), (5, 4)])
def test_replicas_that_leave_together_forget_nothing(start_cluster, callers, total, leaving, leave, delay, timeout):
    cluster = start_cluster(total, drain_delay=delay, flags=["--drain-timeout", timeout])

    def passes(targets, each):
        """The calls of one hit that pass, of `each` calls for each key, spread over these replicas."""
        keys = [(n, key) for _ in range(each) for n, key in enumerate(KEYS)]
        calls = [
            (targets[(n + turn) % len(targets)], rate_limit_request(descriptor(key)))
            for turn, (n, key) in enumerate(keys)
        ]
        responses = callers.call_all(calls)
        assert not [response for response in responses if response.error]
        return sum(response.passes for response in responses)

    assert passes(cluster.targets, 7) == 7 * len(KEYS)
    if leave == "backed up":
        cluster.await_backup()
    leavers, everyone, staying = cluster.replicas[:leaving], list(cluster.targets), cluster.targets[leaving:]
    with ThreadPoolExecutor() as threads:
        removed = threads.submit(cluster.remove, *leavers)
        passed = 0
        if delay == LONG_DELAY[0]:
            # Kubernetes goes on sending to replicas that leave, until all nodes know of it.
            eventually("they leave", lambda: all(one.call(one.http, "/readyz").code == 503 for one in leavers))
            passed = passes(everyone, 2)
            assert passed == 2 * len(KEYS)
        passed += passes(staying, 6)
        removed.result()
    cluster.await_settled()

    assert passed == 3 * len(KEYS), "10 of all calls for each key pass"
    assert passes(cluster.targets, 1) == 0


def test_roll_at_fixed_addresses_lets_no_call_pass(make_cluster, callers, free_address):
    addresses = [free_address(), free_address()]
    cluster = make_cluster()
    for address in addresses:
        cluster.launch(grpc=address)
    cluster.await_ready()
    used_up = rate_limit_request(descriptor(("user", "ann")))
    assert callers.call(addresses[0], descriptor(("user", "ann"), hits=10)).passes

    async def passes(turn):
        """A call of a client that asks at most two replicas, and lets a request pass without an answer."""
        for address in (addresses[turn % 2], addresses[1 - turn % 2]):
            response = await callers.call_async(address, used_up)
            if not response.error:
                return response.passes
        return True

    async def passes_of(turns):
        return await asyncio.gather(*(passes(turn) for turn in turns))

    def roll():
        for old in list(cluster.replicas):
            cluster.remove(old)
            cluster.launch(grpc=old.grpc)
            cluster.await_ready()

    passed = []
    with ThreadPoolExecutor() as threads:
        rolled = threads.submit(roll)
        while not rolled.done() or len(passed) < 3_000:
            passed += callers.run(passes_of(range(10)))
        rolled.result()
    assert sum(passed) == 0, f"of {len(passed)}"


@pytest.mark.extended
@pytest.mark.timing
def test_rolling_and_scaling_under_load_fails_no_call_and_stays_exact(start_cluster, callers):
    cluster = start_cluster(drain_delay="500ms", flags=DETAILED_ANSWERS)
    hot, plenty = descriptor(("hot", "one")), [descriptor(("plenty", f"name-{number}")) for number in range(50)]

    with Load(callers, cluster.targets, [hot, *plenty]) as load:
        for old in list(cluster.replicas):
            cluster.replace(old)
            load.await_calls(50)
        cluster.start(2)
        load.await_calls(50)
        cluster.remove(*cluster.replicas[:3])
        cluster.await_settled()
        load.await_calls(50)

    assert not load.failed() and not load.degraded()
    [left] = callers.call(cluster.targets[0], as_peek(hot)).remaining
    assert load.passed_count(hot) + left == 300


@pytest.mark.timing
def test_rolling_replacement_causes_no_envoy_errors(start_cluster, start_envoy, echo, free_address):
    # Longer than the second for which Envoy batches changes of health.
    cluster = start_cluster(2, drain_delay="2s")
    spare = free_address()
    routes = [route("/", rate_limit(header("plenty")), rate_limit(header("user")))]
    envoy = start_envoy(bootstrap([*cluster.targets, spare], echo.address, routes, failure_mode_deny=True))
    eventually("both are healthy", lambda: envoy.healthy_hosts("tollgate") == 2)
    assert envoy.codes(4, x_user="ann") == [200] * 4

    with EdgeLoad(envoy, clients=3, header="x_plenty") as load:
        for old in list(cluster.replicas):
            cluster.start(grpc=spare)
            eventually("the new one is healthy", lambda: envoy.healthy_hosts("tollgate") == 3)
            cluster.remove(old)
            cluster.await_settled()
            spare = old.grpc
            load.await_calls(30)

    assert load.failures() == []
    assert envoy.statistic("cluster.upstream.ratelimit.error") == 0
    assert envoy.codes(8, x_user="ann") == [200] * 6 + [429] * 2


@pytest.mark.extended
def test_simultaneous_shutdown_under_load_ends_in_time(start_cluster, callers):
    # While no replica serves, calls for slots of a replica that is gone are degraded.
    cluster = start_cluster(may_degrade=True)
    plenty = [descriptor(("plenty", f"name-{number}")) for number in range(50)]
    with Load(callers, list(cluster.targets), plenty, concurrency=8) as load:
        cluster.remove(*cluster.replicas)
        assert load.responses


@pytest.mark.extended
@pytest.mark.parametrize("begins", ["all together", "one alone"])
def test_full_cluster_restart_resumes_from_snapshots(make_cluster, charge_all, assert_remaining, begins):
    cluster = make_cluster()
    snapshots = [["--snapshot", cluster.folder / f"counters-{number}"] for number in range(3)]
    for flags in snapshots:
        cluster.launch(flags=flags)
    cluster.await_ready()
    assert charge_all(cluster, 7) == len(KEYS)

    cluster.remove(*cluster.replicas)
    last, *others = reversed(snapshots)
    cluster.launch(flags=last)
    if begins == "one alone":
        cluster.await_ready()
    for flags in others:
        cluster.launch(flags=flags)
    cluster.await_ready()

    assert_remaining(cluster, 3)


def as_peek(descriptor):
    return descriptor | {"hits_addend": {"value": 0}}
