"""Replicas and callers that find each other by a name with several addresses, which change."""

import asyncio
import socket

import pytest

import dns
import network
from processes import eventually, http_call
from rls import Callers, descriptor, rate_limit_request

MISSING = network.mounts_missing()
pytestmark = [
    pytest.mark.extended,
    pytest.mark.skipif(MISSING is not None, reason=f"mount namespaces: {MISSING}"),
]
# The seed of the replicas, and the name that callers use.
PEERS, SERVICE = "peers.tollgate.test", "tollgate.test"
USER = ("user", "ann")


@pytest.fixture
def names(cleanup, tmp_path):
    server = dns.NameServer(tmp_path)
    cleanup.callback(server.stop)
    return server


@pytest.fixture
def hosts(names):
    """Loopback addresses of this test; each is another machine to the replicas."""
    return [names.host.replace("127.53.", "127.54.").rsplit(".", 1)[0] + f".{number}" for number in range(10, 20)]


@pytest.fixture
def shared_port(hosts):
    """A port that is free on all hosts."""
    with socket.socket() as taken:
        taken.bind((hosts[0], 0))
        return taken.getsockname()[1]


@pytest.fixture
def launch(names, shared_port):
    """Starts a replica on a host, with the name as its only seed."""

    def launch(cluster, host, **options):
        resolver = dns.Resolver(names, http_call)
        seeds = [f"{PEERS}:{shared_port}"]
        return cluster.launch(
            seeds=seeds, host=host, sandbox=resolver, cluster_listen=f"{host}:{shared_port}", **options
        )

    return launch


@pytest.mark.parametrize("dead", ["refuses", "silent"])
def test_name_with_dead_first_address_finds_cluster(
    make_cluster, callers, launch, names, hosts, shared_port, cleanup, dead
):
    cluster = make_cluster()
    first_host, dead_host, joining_host = hosts[1], hosts[2], hosts[3]
    names.addresses[PEERS] = [first_host]
    launch(cluster, first_host).await_ready()
    cluster.await_ready()
    assert callers.call(cluster.targets[0], descriptor(USER, hits=4)).passes
    if dead == "silent":
        silent = socket.create_server((dead_host, shared_port))
        cleanup.callback(silent.close)

    # The resolver of the system sorts addresses, so each order is tried.
    for addresses in ([dead_host, first_host], [first_host, dead_host]):
        names.addresses[PEERS] = addresses
        joined = launch(cluster, joining_host)
        cluster.await_ready()
        assert callers.call(joined.grpc, descriptor(USER, hits=0)).remaining == (6,)
        assert cluster.total("tollgate_cluster_begun_anew_total") == 0
        cluster.remove(joined)
        cluster.await_settled()


def test_name_that_changes_finds_replica_at_new_address(make_cluster, callers, launch, names, hosts):
    cluster = make_cluster()
    names.addresses[PEERS] = []
    stays, leaves = launch(cluster, hosts[1]), launch(cluster, hosts[2])
    for replica in cluster.replicas:
        replica.await_ready()
    assert [len(replica.serving()) for replica in cluster.replicas] == [1, 1], "the name has no address yet"

    names.addresses[PEERS] = [hosts[1], hosts[2]]
    cluster.await_ready()
    assert callers.call(cluster.targets[0], descriptor(USER, hits=4)).passes

    # Every replica but one moves to another address, and the name follows.
    cluster.remove(leaves)
    names.addresses[PEERS] = [hosts[3], hosts[1]]
    moved = launch(cluster, hosts[3])
    cluster.await_ready()
    assert callers.call(moved.grpc, descriptor(USER, hits=0)).remaining == (6,)

    cluster.remove(stays)
    names.addresses[PEERS] = [hosts[3], hosts[4]]
    launch(cluster, hosts[4])
    cluster.await_ready()
    assert {callers.call(to, descriptor(USER, hits=0)).remaining for to in cluster.targets} == {(6,)}


CONNECTION_AGE = 4.0
# The age of a connection has a jitter of a fifth.
AGE_MAX = 1.2 * CONNECTION_AGE
# What a client takes to look up the name and connect again.
RECONNECT_SECONDS = 1.0
CLIENTS = 24


class NamedCallers:
    """Callers with a connection each to an address that the name has, and that call without pause."""

    def __init__(self, names, port):
        # `pick_first`: one connection, and another lookup when the server closes it, as clients behind a headless
        # service do.
        self.target = f"dns://{names.host}:{dns.PORT}/{SERVICE}:{port}"
        self.options = [("grpc.lb_policy_name", "pick_first"), ("grpc.dns_min_time_between_resolutions_ms", 50)]
        self.responses = []
        self.stopped = False

    async def call(self):
        caller = Callers.on_this_loop(self.options)
        while not self.stopped:
            self.responses.append(await caller.call_async(self.target, rate_limit_request(descriptor(USER, hits=0))))
            await asyncio.sleep(0.02)
        await caller.close()

    async def run(self):
        await asyncio.gather(*(self.call() for _ in range(CLIENTS)))

    def failed(self):
        return [response for response in self.responses if response.error]


def connections(replica):
    return replica.metric("tollgate_connections", listener="grpc")


@pytest.mark.timing
def test_new_replicas_get_share_of_connections_within_one_age(
    make_cluster, callers, launch, names, hosts, shared_port, cleanup
):
    age = ["--grpc-max-connection-age", f"{CONNECTION_AGE:.0f}s"]
    cluster = make_cluster(flags=age, drain_delay="1s")
    port = shared_port + 1 if shared_port < 65535 else shared_port - 1
    ready = iter(hosts[1:])

    def publish(replicas):
        names.addresses[SERVICE] = [replica.grpc.split(":")[0] for replica in replicas]

    def start(count):
        for _ in range(count):
            host = next(ready)
            names.addresses[PEERS] = [*names.addresses.get(PEERS, []), host]
            launch(cluster, host, grpc=f"{host}:{port}")
        cluster.await_ready()
        publish(cluster.replicas)

    start(3)
    named = NamedCallers(names, port)
    done = asyncio.run_coroutine_threadsafe(named.run(), callers.loop)
    cleanup.callback(setattr, named, "stopped", True)
    eventually("every client is connected", lambda: sum(map(connections, cluster.replicas)) >= CLIENTS)

    start(2)
    # The mean of five replicas is a fifth; half of that cannot be luck, because the name server takes turns.
    share = CLIENTS / len(cluster.replicas) / 2
    eventually(
        "the new replicas have their share",
        lambda: all(connections(replica) >= share for replica in cluster.replicas[3:]),
        AGE_MAX + RECONNECT_SECONDS,
    )

    leaving = cluster.replicas[:3]
    publish(cluster.replicas[3:])
    # One after the other, as a rollout does: gRPC repeats a call that one server turns away, and not one that two do.
    for replica in leaving:
        cluster.remove(replica)
    cluster.await_settled()
    called = len(named.responses)
    eventually("the clients go on", lambda: len(named.responses) > called + 10 * CLIENTS)
    named.stopped = True
    done.result(30.0)
    assert not named.failed()
    # The last calls reached the replicas that remain.
    assert sum(map(connections, cluster.replicas)) <= CLIENTS
