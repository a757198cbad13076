"""Callers of quotas that take all they can: the process keeps its memory, and others get theirs in time."""

import asyncio
import contextlib
import itertools
import time

import pytest

from bootstraps import deployed_quotas
from load import Load
from network import Relay
from processes import eventually
from quotas import ReportClient, reports
from rls import Callers, descriptor, field

pytestmark = pytest.mark.extended

# Of deploy/kubernetes.
MEMORY_LIMIT = 256 * 1024 * 1024
# All tenants whose name begins with `one-` share a limit.
RULES = """
    domain: edge
    on_denied: charge_none
    descriptors:
      - {key: user, rate_limit: {unit: year, requests_per_unit: 1000000000}}
      - {key: tenant, rate_limit: {unit: second, requests_per_unit: 100, algorithm: token_bucket, burst: 20}}
      - key: tenant
        value: one-*
        share_threshold: true
        rate_limit: {unit: second, requests_per_unit: 1000000, algorithm: token_bucket}
"""
QUOTAS = ["--rlqs-enabled", "true"]
USERS = [descriptor(("user", f"name-{number}")) for number in range(10)]
FLOOD_SECONDS = 5.0
FLOOD_TIMEOUT = 60.0
# The last bytes of addresses.
ATTACKERS = range(2, 6)
REPORTS = "tollgate_rlqs_reports_total"
REFUSED = "tollgate_rlqs_refused_total"
# Of a message of 1.5 MB.
BUCKETS = 28_000
PLACES_MAX = 4_096
# Memory for all of them.
ALL_PLACES = ["--rlqs-memory", "64MiB"]
# Of one connection.
STREAMS_MAX = 1_000
# A little less than the largest message, and so many ids in one.
LONG, LONG_IDS = 4_000_000, 900
numbers = itertools.count()


@pytest.fixture
def start_limited(rule_file, start_tollgate, memory_group):
    """Starts a server with the memory limit of the manifests, and default settings except for these flags."""

    def start(*flags):
        return start_tollgate(rule_file(RULES), prefix=memory_group(MEMORY_LIMIT).prefix, flags=[*QUOTAS, *flags])

    return start


@pytest.fixture
def attackers(cleanup):
    """Clients on another event loop than those of others."""
    attackers = Callers()
    cleanup.callback(attackers.stop)
    return attackers


def tenants(count, prefix="", suffix=""):
    """Buckets that have not been reported."""
    return [[("tenant", f"{prefix}{next(numbers)}{suffix}")] for _ in range(count)]


def long_ids():
    return reports(tenants(LONG_IDS, suffix="x" * 4_000), allowed=1)


def long_domain():
    return reports(tenants(1), domain="x" * LONG)


def many_pairs():
    pair = field(1, field(1, b"k") + field(2, b"v"))
    return field(1, b"edge") + field(2, field(1, pair * (LONG // len(pair))))


def test_ended_streams_of_quotas_keep_the_process_within_its_memory(start_limited, attackers, callers):
    tollgate = start_limited()
    messages = itertools.cycle([reports(tenants(10_000), allowed=1, denied=1) for _ in range(20)])
    until = time.monotonic() + FLOOD_SECONDS

    async def open_streams(client):
        sent = 0
        while time.monotonic() < until:
            stream = client.open()
            await stream.send(next(messages))
            await stream.end()
            sent += 1
        return sent

    async def flood():
        async with contextlib.AsyncExitStack() as stack:
            relays = [Relay(tollgate.grpc, number) for number in ATTACKERS]
            clients = [await stack.enter_async_context(ReportClient(relay.address)) for relay in relays]
            return sum(await asyncio.gather(*(open_streams(client) for client in clients for _ in range(5))))

    sent = attackers.run(flood(), FLOOD_TIMEOUT)
    print(f"{sent} messages, {tollgate.resident_peak() >> 20} MiB")
    assert_within_memory(tollgate, callers)


@pytest.mark.parametrize(
    ("message", "buckets", "rounds"), [(long_ids, LONG_IDS, 25), (long_domain, 1, 25), (many_pairs, 1, 5)]
)
def test_open_streams_of_quotas_keep_the_process_within_its_memory(
    start_limited, attackers, callers, message, buckets, rounds
):
    tollgate = start_limited()
    messages = [message() for _ in ATTACKERS]
    streams = []

    async def connect():
        return [ReportClient(Relay(tollgate.grpc, number).address) for number in ATTACKERS]

    async def open_streams(clients):
        opened = [client.open() for client in clients]
        streams.extend(opened)
        await asyncio.gather(*(stream.send(message) for stream, message in zip(opened, messages)))

    def is_taken():
        return tollgate.metric(REPORTS) >= buckets * sum(stream.error is None for stream in streams)

    clients = attackers.run(connect())
    # By turns, so that messages are not refused before they are complete.
    for _ in range(rounds):
        attackers.run(open_streams(clients), FLOOD_TIMEOUT)
        eventually("the reports are taken, or their streams refused", is_taken)
    left = sum(stream.error is None for stream in streams)
    print(f"{left} of {len(streams)} streams, {tollgate.resident_peak() >> 20} MiB")
    for client in clients:
        attackers.run(client.close())
    assert_within_memory(tollgate, callers)


def assert_within_memory(tollgate, callers):
    tollgate.assert_running()
    assert tollgate.resident_peak() <= MEMORY_LIMIT
    assert tollgate.metric(REFUSED) > 0
    assert callers.call(tollgate.grpc, USERS[0]).passes


def test_memory_of_quotas_is_at_most_what_counts(rule_file, start_tollgate, attackers):
    tollgate = start_tollgate(rule_file(RULES), flags=[*QUOTAS, "--rlqs-memory", "1GiB"])
    # Each has a limit of its own.
    messages = [reports(tenants(20_000), allowed=1, denied=1) for _ in range(5)]
    counted = lambda: tollgate.metric("tollgate_rlqs_memory_bytes") + tollgate.metric("tollgate_counters_bytes")
    resident, before = tollgate.resident_peak(), counted()

    async def open_stream():
        client = ReportClient(Relay(tollgate.grpc, ATTACKERS[0]).address)
        await client.open().send(*messages)
        return client

    client = attackers.run(open_stream(), FLOOD_TIMEOUT)
    eventually("all are taken", lambda: tollgate.metric(REPORTS) >= 100_000, FLOOD_TIMEOUT)
    grown, counted_more = tollgate.resident_peak() - resident, counted() - before
    print(f"{grown >> 20} MiB, {int(counted_more) >> 20} MiB of them counted")
    attackers.run(client.close())

    assert tollgate.metric("tollgate_rlqs_divided_counters") == 100_000
    assert 0 < grown <= counted_more


def test_large_reports_of_quotas_leave_calls_of_others_in_time(start_limited, attackers, callers):
    tollgate = start_limited(*ALL_PLACES)
    # Together 3 MB, more of a limit than it has places.
    messages = [reports(tenants(BUCKETS, "one-of-the-tenants-of-this-limit-"), allowed=3, denied=3) for _ in range(2)]
    assert all(len(message) >= 1_500_000 for message in messages)
    rounds = 3

    async def report(number, message):
        async with ReportClient(Relay(tollgate.grpc, 2 + number).address) as client:
            stream = client.open()
            for _ in range(rounds):
                await stream.send(message)
            await stream.end()
            return stream.actions

    async def report_all():
        return await asyncio.gather(*(report(*each) for each in enumerate(messages)))

    with Load(callers, [tollgate.grpc], USERS) as load:
        load.await_calls(100)
        answered = attackers.run(report_all())
        load.await_calls(100)
    slowest = max(response.seconds for response in load.responses)
    print(f"{answered} actions, {len(load.responses)} calls, at most {slowest * 1000:.0f} ms")

    assert not load.failed()
    assert tollgate.metric(REPORTS) == rounds * len(messages) * BUCKETS
    assert tollgate.metric("tollgate_rlqs_division_visits_total") >= PLACES_MAX / 2


@pytest.mark.paced
def test_reload_with_100000_open_buckets_leaves_calls_of_others_in_time(rule_file, start_tollgate, attackers, callers):
    tollgate = start_tollgate(rule_file(RULES), flags=[*QUOTAS, "--rlqs-memory", "1GiB"])
    messages = [reports(tenants(20_000), allowed=1, denied=1) for _ in range(5)]

    async def open_stream():
        client = ReportClient(Relay(tollgate.grpc, ATTACKERS[0]).address)
        stream = client.open()
        await stream.send(*messages)
        return client, stream

    client, stream = attackers.run(open_stream(), FLOOD_TIMEOUT)
    eventually("all are divided", lambda: tollgate.metric("tollgate_rlqs_divided_counters") == 100_000, FLOOD_TIMEOUT)
    generation, before = tollgate.rules()["generation"], stream.actions
    with Load(callers, [tollgate.grpc], USERS) as load:
        load.await_calls(100)
        rule_file(RULES.replace("requests_per_unit: 100, algorithm: token_bucket, burst: 20", "requests_per_unit: 0"))
        tollgate.await_generation_after(generation)
        eventually("all are told to deny", lambda: stream.actions >= before + 100_000, FLOOD_TIMEOUT)
        load.await_calls(100)
    seconds = sorted(response.seconds for response in load.responses)
    p99 = seconds[len(seconds) * 99 // 100]
    print(f"{len(seconds)} calls, 99 % within {p99 * 1000:.0f} ms, all within {seconds[-1] * 1000:.0f} ms")
    attackers.run(client.close())

    assert not load.failed()
    assert p99 <= 0.1


async def take_streams(clients):
    """As many streams as each connection may have."""
    streams = [client.open() for client in clients for _ in range(STREAMS_MAX)]
    await asyncio.gather(*(stream.send(reports([])) for stream in streams))
    return streams


async def take_places(clients):
    stream = clients[0].open()
    await stream.send(reports(tenants(PLACES_MAX + 100, "one-"), allowed=1, denied=1))
    return [stream]


async def take_buckets(clients):
    stream = clients[0].open()
    await stream.send(reports(tenants(10_000), allowed=1, denied=1))
    return [stream]


@pytest.mark.parametrize(
    ("take", "tenant", "flags"),
    [(take_streams, "honest", []), (take_places, "one-honest", ALL_PLACES), (take_buckets, "honest", [])],
)
def test_caller_that_takes_all_of_quotas_leaves_an_envoy_its_assignment(
    start_limited, attackers, start_envoy, take, tenant, flags
):
    tollgate = start_limited(*flags)

    async def take_all():
        clients = [ReportClient(Relay(tollgate.grpc, 2).address) for _ in range(4)]
        return clients, await take(clients)

    clients, streams = attackers.run(take_all())
    eventually("something is refused", lambda: tollgate.metric(REFUSED) > 0)
    envoy = start_envoy(deployed_quotas(tollgate.grpc).replace("domain: quotas", "domain: edge"))
    eventually("tollgate is healthy in envoy", lambda: envoy.healthy("tollgate"))

    # Without an assignment all is denied.
    eventually("the envoy has its assignment", lambda: envoy.get(x_tenant=tenant).code == 200)
    left = sum(stream.error is None for stream in streams)
    print(f"{left} of {len(streams)} streams, {sum(stream.actions for stream in streams)} actions")
    assert left > 0 and tollgate.metric("tollgate_rlqs_streams") == left + 1
    for client in clients:
        attackers.run(client.close())
