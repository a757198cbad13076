"""Callers that make a cluster remember as much as it can: links, limits and memory hold, and others are answered."""

import asyncio
import itertools
import random
import threading
import time

import grpc
import pytest

from cluster import DETAILED_ANSWERS
from load import Load, key_of
from network import Relay
from processes import eventually
from quotas import ReportClient, reports
from rls import CHANNEL_OPTIONS, Callers, descriptor, field, rate_limit_request

METHOD = "/tollgate.v1.RateLimiter/Settle"
BACKUPS_ARRIVED = "tollgate_cluster_backups_arrived_total"
# Of `api.max_descriptors`.
DESCRIPTORS_MAX = 256
# Calls under way on one connection.
AT_ONCE = 6
# Of one key: four times what a counter remembers, so that most of them replace others, and more would only go on with
# that.
IDS = 262_144
FLOOD_SECONDS_MAX = 180.0
# The longest call of others, in seconds, beyond the longest one without a flood.
SLOWEST = 1.0
# What 20,000 ids of a counter and 30 charges of it may send.
BACKUP_BYTES_MAX = 5_000_000
MEMORY_LIMIT = "128MiB"
RESIDENT_MAX = 300 * 1024 * 1024
# A degraded check is refused, so that no key gets more than its limit.
RULES = """
    domain: edge
    on_denied: charge_none
    descriptors:
      - key: flooded
        rate_limit: {unit: year, requests_per_unit: 1000000000, algorithm: fixed_window}
      - key: user
        rate_limit: {unit: year, requests_per_unit: 40, algorithm: fixed_window, on_owner_unavailable: deny}
      - key: log
        rate_limit: {unit: hour, requests_per_unit: 10000, algorithm: sliding_log}
"""
# Limits that are divided over buckets, and the places of each that callers from so many addresses get: of the 4,096
# half for the first, and then a quarter of what is left.
DIVIDED = 12
PLACES = [2_048, 512, 384, 288, 216, 162]
QUOTA_RULES = RULES + "".join(
    f"""
      - key: divided{number}
        value: "*"
        share_threshold: true
        rate_limit: {{unit: second, requests_per_unit: 10000, algorithm: token_bucket}}
"""
    for number in range(DIVIDED)
)
REPORTS_EACH_SECOND = 240
REPORT_SECONDS = 8
# Of a user.
USER_LIMIT = 40
USERS = [descriptor(("user", f"name-{number}")) for number in range(10)]


def settlement(values):
    """All but the id of a settlement of one hit for each of these values of `flooded`."""
    entries = [field(1, field(1, b"flooded") + field(2, value.encode())) for value in values]
    return field(1, b"edge") + b"".join(field(2, entry) for entry in entries) + field(4, 1)


class Flood:
    """Settles unknown reservations over one connection, until `ids` of them are settled or `seconds` have passed."""

    def __init__(self, name, address, values, ids, seconds):
        self.name = name
        self.address = address
        self.message = settlement(values)
        self.values = len(values)
        self.ids = ids
        self.seconds = seconds
        self.settled = 0
        self.errors = []
        self.thread = threading.Thread(target=lambda: asyncio.run(self._run()))

    async def _run(self):
        numbers = itertools.count()
        end = time.monotonic() + self.seconds
        async with grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS) as channel:
            settle = channel.unary_unary(METHOD, lambda message: message, lambda message: message)

            async def settle_in_turn():
                while self.settled < self.ids and time.monotonic() < end:
                    reservation = f"a reservation of {self.name} with a long id, number {next(numbers)}"
                    try:
                        await settle(self.message + field(3, reservation.encode()), timeout=10.0)
                        self.settled += self.values
                    except grpc.aio.AioRpcError as error:
                        self.errors.append(error.code().name)

            await asyncio.gather(*(settle_in_turn() for _ in range(AT_ONCE)))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.thread.join()


def resident_peaks(cluster):
    """The most that each replica has had resident, in bytes."""
    return [replica.resident_peak() for replica in cluster.replicas]


def assert_links_held(cluster):
    for replica in [*cluster.replicas, *cluster.gone]:
        aborted = [event for event in replica.events() if "session aborted" in event.get("message", "")]
        assert not aborted, aborted[:3]


def assert_exact(cluster, callers, *loads):
    """What passed of each user, and what is left, are the limit. A degraded check is refused and takes nothing, but its
    owner may have charged it and answered too late."""
    for user in USERS:
        peek = callers.call(cluster.targets[0], {**user, "hits_addend": {"value": 0}})
        assert not peek.degraded and not peek.error
        passed, [left] = sum(load.passed_count(user) for load in loads), peek.remaining
        late_at_most = sum(load.uncertain[key_of(user)] for load in loads)
        assert USER_LIMIT - late_at_most <= passed + left <= USER_LIMIT, (passed, left, late_at_most)


@pytest.mark.extended
def test_backups_of_a_counter_with_many_ids_send_only_changes(start_cluster, callers):
    cluster = start_cluster(2, rules=RULES)
    owner = cluster.replicas[0]
    name = next(name for name in map(str, itertools.count()) if is_owner(owner, callers, name))
    charge = descriptor(("flooded", name))
    sent = owner.metric("tollgate_cluster_batch_bytes_total", direction="out")

    with Flood("caller", owner.grpc, [name] * DESCRIPTORS_MAX, 20_000, 60.0) as flood:
        pass
    assert flood.settled >= 20_000 and not flood.errors
    for _ in range(30):
        arrived = owner.metric(BACKUPS_ARRIVED)
        assert callers.call(owner.grpc, charge).passes
        # So that each charge is in a backup of its own.
        eventually("a backup", lambda arrived=arrived: owner.metric(BACKUPS_ARRIVED) > arrived)

    assert owner.metric("tollgate_cluster_batch_bytes_total", direction="out") - sent <= BACKUP_BYTES_MAX


def is_owner(replica, callers, name):
    """Whether the counter of this key is at the replica: it forwards no charge."""
    forwarded = replica.metric("tollgate_cluster_forwarded_checks_total")
    assert callers.call(replica.grpc, descriptor(("flooded", name))).passes
    return replica.metric("tollgate_cluster_forwarded_checks_total") == forwarded


@pytest.mark.extended
@pytest.mark.timing
def test_ids_of_one_key_leave_links_and_other_calls_alone(start_cluster, callers):
    # The ids of one key are all at one owner and its backup, so checks of others there may wait for a core for longer than
    # the forward budget.
    cluster = start_cluster(rules=RULES, may_degrade=True, drain_delay="500ms", flags=DETAILED_ANSWERS)
    floods = [
        Flood(f"caller {number}", cluster.targets[number], ["one"] * DESCRIPTORS_MAX, IDS // 2, FLOOD_SECONDS_MAX)
        for number in (0, 1)
    ]

    with Load(callers, cluster.targets, USERS) as load:
        load.await_calls(1_000)
    control = slowest(load)
    with Load(callers, cluster.targets, USERS, seconds_max=2 * FLOOD_SECONDS_MAX) as beside:
        with floods[0], floods[1]:
            pass
        assert sum(flood.settled for flood in floods) >= IDS, [(flood.settled, flood.errors[:3]) for flood in floods]
        assert cluster.total("tollgate_cluster_members_lost_total") == 0
        assert max(resident_peaks(cluster)) <= RESIDENT_MAX, resident_peaks(cluster)
        fill_logs(cluster, callers)
        cluster.roll()
        beside.await_calls(200)

    assert_links_held(cluster)
    assert_exact(cluster, callers, load, beside)
    assert not beside.failed()
    assert slowest(beside) < SLOWEST + control


def slowest(load):
    return max(response.seconds for response in load.responses)


def fill_logs(cluster, callers):
    """Gives many logs some hundred entries each, over all replicas."""
    logs = [descriptor(("log", f"name-{number}")) for number in range(DESCRIPTORS_MAX)]
    calls = [(target, rate_limit_request(*logs)) for target in cluster.targets] * 60
    assert all(response.passes for response in callers.call_all(calls, 4, timeout=10.0))


@pytest.mark.extended
@pytest.mark.timing
def test_small_replicas_keep_limits_and_memory_while_ids_flood(start_cluster, callers):
    # Callers that settle as fast as they can leave owners less of the cores than answers within the forward budget need.
    flags = ["--store-memory-limit", MEMORY_LIMIT, *DETAILED_ANSWERS]
    cluster = start_cluster(rules=RULES, may_degrade=True, flags=flags)
    many = [f"name-{number}" for number in range(DESCRIPTORS_MAX)]
    floods = [
        Flood("the first caller", cluster.targets[0], ["one"] * DESCRIPTORS_MAX, 10**9, 14.0),
        Flood("the second caller", cluster.targets[1], many, 10**9, 14.0),
    ]

    with Load(callers, cluster.targets, USERS, concurrency=8, interval=0.001) as load:
        with floods[0], floods[1]:
            pass

    assert all(flood.settled > 10_000 for flood in floods)
    assert_links_held(cluster)
    assert cluster.total("tollgate_cluster_members_lost_total") == 0
    assert_exact(cluster, callers, load)
    assert cluster.total("tollgate_counters_evicted_total", reason="unexpired") == 0
    assert cluster.total("tollgate_counters_refused_total") == 0
    assert max(resident_peaks(cluster)) <= RESIDENT_MAX, resident_peaks(cluster)


class Reporter:
    """A caller with buckets of each divided limit, from an address of its own."""

    def __init__(self, address, number, places):
        self.client = ReportClient(Relay(address, 2 + number).address)
        self.stream = self.client.open()
        self.number, self.places = number, places

    def bucket(self, limit, place):
        return [(f"divided{limit}", f"{self.number}.{place}")]

    async def report_all(self):
        for limit in range(DIVIDED):
            buckets = [self.bucket(limit, place) for place in range(self.places)]
            await self.stream.send(reports(buckets, allowed=3, denied=3))

    async def report(self, limit, place, hits):
        await self.stream.send(reports([self.bucket(limit, place)], allowed=hits, denied=hits))


@pytest.mark.extended
@pytest.mark.timing
def test_reports_of_full_limits_leave_links_and_other_calls_alone(start_cluster, callers, cleanup):
    # Divisions of full limits take processor time of owners, whose answers to others may come after the forward budget.
    flags = ["--rlqs-enabled", "true", "--rlqs-memory", "256MiB", *DETAILED_ANSWERS]
    cluster = start_cluster(rules=QUOTA_RULES, may_degrade=True, flags=flags)
    reporting = Callers()
    cleanup.callback(reporting.stop)
    rng = random.Random(1)

    async def open_all():
        targets = itertools.cycle(cluster.targets)
        return [Reporter(target, *each) for target, each in zip(targets, enumerate(PLACES))]

    async def report_all(reporters):
        begin = time.monotonic()
        for number in range(REPORTS_EACH_SECOND * REPORT_SECONDS):
            reporter = reporters[number % len(reporters)]
            await reporter.report(number % DIVIDED, rng.randrange(reporter.places), rng.randint(1, 300))
            await asyncio.sleep(max(0.0, begin + number / REPORTS_EACH_SECOND - time.monotonic()))
        for reporter in reporters:
            await reporter.client.close()

    with Load(callers, cluster.targets, USERS) as load:
        reporters, taken = reporting.run(open_all()), 0
        for reporter in reporters:
            reporting.run(reporter.report_all())
            taken += DIVIDED * reporter.places
            eventually("they are taken", lambda: cluster.total("tollgate_rlqs_reports_total") >= taken, 60.0)
        visited, cpu = cluster.total("tollgate_rlqs_division_visits_total"), cluster.total("process_cpu_seconds_total")
        reporting.run(report_all(reporters))
        visited = cluster.total("tollgate_rlqs_division_visits_total") - visited
        cpu = cluster.total("process_cpu_seconds_total") - cpu
        load.await_calls(200)
    print(f"{visited:.0f} visits, {cpu:.1f} s of CPU; {len(load.responses)} calls, at most {slowest(load):.2f} s")
    print(f"{len(load.degraded())} degraded")

    assert visited >= taken
    assert cluster.total("tollgate_cluster_isolations_total") == 0
    assert cluster.total("tollgate_cluster_members_lost_total") == 0
    assert_links_held(cluster)
    assert_exact(cluster, callers, load)
    assert not load.failed()
