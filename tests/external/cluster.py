"""Replicas of one cluster as processes on the loopback: started, replaced, drained and killed."""

import contextlib
import http.client
import itertools
import pathlib
import signal

import pytest

from processes import LOOPBACK, TIMEOUT, Tollgate, eventually, http_call

SECRET = "a secret that only these replicas share"
# Windows of a year, so that none ends during a test.
RULES = """
    domain: edge
    on_denied: charge_none
    descriptors:
      - key: user
        rate_limit: {unit: year, requests_per_unit: 10, algorithm: fixed_window}
      - key: hot
        rate_limit: {unit: year, requests_per_unit: 300, algorithm: fixed_window}
      - key: plenty
        rate_limit: {unit: year, requests_per_unit: 1000000000, algorithm: fixed_window}
      - key: bucket
        rate_limit: {unit: year, requests_per_unit: 10, algorithm: token_bucket}
      - key: share
        rate_limit: {unit: year, requests_per_unit: 9, algorithm: fixed_window}
      - key: allow
        rate_limit: {unit: year, requests_per_unit: 9, algorithm: fixed_window, on_owner_unavailable: allow}
      - key: deny
        rate_limit: {unit: year, requests_per_unit: 9, algorithm: fixed_window, on_owner_unavailable: deny}
      - key: turn
        rate_limit: {unit: second, requests_per_unit: 2, algorithm: leaky_queue, burst: 3}
      - key: member
        rate_limit: {unit: year, requests_per_unit: 3, algorithm: fixed_window}
      - key: group
        rate_limit: {unit: year, requests_per_unit: 10, algorithm: fixed_window}
"""
# For tests whose subject is something else than answers in time: a forward may take up to half of the caller's timeout.
LONG_FORWARD_BUDGET = ["--cluster-forward-budget-max", "1m"]
# A caller's timeout that leaves all of this budget to a forward.
LONG_TIMEOUT = 120.0
# Answers with response headers and dynamic metadata. Only these say that they are degraded.
DETAILED_ANSWERS = ["--api-dynamic-metadata", "true"]
DETAILED_ANSWERS += ["--headers-ietf", "all"]
for _header in ("x-ratelimit", "retry-after", "partition-key"):
    DETAILED_ANSWERS += [f"--headers-{_header}", "true"]
# The default, in seconds.
BACKUP_INTERVAL = 0.1
DEGRADED_CHECKS = "tollgate_cluster_degraded_checks_total"
# Numbers of replicas, so that each has its own log.
NUMBERS = itertools.count(1)
# The default of `drain.timeout`, in seconds.
DRAIN_TIMEOUT = 25.0
# The time within which all replicas must agree on the owner of every slot.
SETTLE_TIMEOUT = 30.0


class Replica(Tollgate):
    """A process of a cluster. `cluster` is its listen address for peers, `advertised` its advertised address."""

    cluster = advertised = None
    # Checks decided without their owner, as last read.
    degraded = 0.0

    def __init__(self, name, rules, log, *, host=LOOPBACK, sandbox=None, cluster_listen=None, flags=(), **options):
        self.name = name
        self.sandbox = sandbox
        prefix = sandbox.prefix if sandbox else ()
        flags = ["--cluster-listen", cluster_listen or f"{host}:0", *flags]
        super().__init__(rules, log, flags=flags, host=host, prefix=prefix, **options)

    def await_listening(self):
        super().await_listening()
        # By its fields, because another build may have another text.
        event = eventually(
            "the replica listens to its peers",
            lambda: next((event for event in self.events() if "advertised" in event), None),
        )
        self.cluster, self.advertised = event["listen"], event["advertised"]

    def event(self, message):
        """The first log event with this message, or None."""
        return next((event for event in self.events() if event.get("message") == message), None)

    def call(self, address, *arguments):
        return (self.sandbox.call if self.sandbox else http_call)(address, *arguments)

    def view(self):
        """The cluster as this replica sees it."""
        self.assert_running()
        response = self.call(self.admin, "/cluster")
        assert response.code == 200, response.body
        return response.json()

    def states(self):
        """The state of each member, by id."""
        return {member["id"]: member["state"] for member in self.view()["members"]}

    def serving(self):
        return sorted(member for member, state in self.states().items() if state == "serving")

    def read_degraded(self):
        """Reads the number of degraded checks. The last number counts when the replica is gone."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            self.degraded = self.metric(DEGRADED_CHECKS)

    def post(self, path):
        return self.call(self.admin, path, "POST")

    def share_waited(self):
        """The part of the time in which the main thread was runnable that it waited for a core."""
        ran, waited, _ = map(int, pathlib.Path(f"/proc/{self.child.pid}/schedstat").read_text().split())
        return waited / (ran + waited)

    def open_files(self):
        return len(list(pathlib.Path(f"/proc/{self.child.pid}/fd").iterdir()))

    def freeze(self):
        """Stops the process; the kernel still accepts connections."""
        self.child.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.child.send_signal(signal.SIGCONT)

    def kill(self):
        if self.child.poll() is None:
            # A stopped process does not handle SIGTERM.
            self.thaw()
        super().kill()


class Cluster:
    """Several replicas. A new replica has the existing ones as seeds."""

    def __init__(self, cleanup, folder, rules, flags=(), proxies=None, **options):
        self.cleanup = cleanup
        self.folder = folder
        self.rules = rules
        self.flags = list(flags)
        self.proxies = proxies
        self.options = {"drain_delay": "100ms", **options}
        self.secret = folder / "cluster.secret"
        self.secret.write_text(f"{SECRET}\n")
        self.secret.chmod(0o600)
        self.replicas = []
        # Addresses for callers: ready replicas that are not draining.
        self.targets = []
        # Replicas that were drained or killed.
        self.gone = []

    def launch(self, *, seeds=None, flags=(), sandbox=None, secret=None, **options):
        """Starts a replica without waiting until it is ready."""
        name = f"replica-{next(NUMBERS)}"
        seeds = [one.advertised for one in self.replicas] if seeds is None else seeds
        seed_flags = [part for seed in seeds for part in ("--cluster-seed", seed)]
        seed_flags += ["--cluster-secret-file", str(secret or self.secret)]
        if self.proxies:
            seed_flags += ["--cluster-advertise", self.proxies.open(name)]
        log = self.folder / f"{name}.log"
        options = {**self.options, **options}
        replica = Replica(name, self.rules, log, sandbox=sandbox, flags=[*self.flags, *seed_flags, *flags], **options)
        self.cleanup.callback(replica.kill)
        replica.await_listening()
        if self.proxies:
            self.proxies.set_target(name, replica)
        self.replicas.append(replica)
        return replica

    def start(self, count=1, **options):
        """Starts `count` replicas and waits until all are ready and the cluster is settled."""
        started = [self.launch(**options) for _ in range(count)]
        self.await_ready()
        return started

    def await_ready(self):
        """Waits until all launched replicas are ready and the cluster is settled."""
        for replica in self.replicas:
            replica.await_ready()
            if replica.grpc not in self.targets:
                self.targets.append(replica.grpc)
        self.await_settled()

    def await_settled(self, timeout=SETTLE_TIMEOUT):
        """Waits until all replicas see the same members, and every slot is at its intended owner."""
        eventually(f"{len(self.replicas)} replicas agree", self.is_settled, timeout)

    def is_settled(self):
        views = [replica.view() for replica in self.replicas]
        members = [[one["id"] for one in view["members"] if one["state"] == "serving"] for view in views]
        return (
            all(view["moving"] == 0 and view["view"] == views[0]["view"] for view in views)
            and all(len(one) == len(self.replicas) for one in members)
            and not any(view["isolated"] for view in views)
        )

    def remove(self, *replicas, by=signal.SIGTERM):
        """Drains replicas at the same time, and waits until they exit."""
        for replica in replicas:
            replica.child.send_signal(by)
            self.exclude(replica)
            self.replicas.remove(replica)
            self.gone.append(replica)
        eventually("the replicas exit", lambda: all(map(has_exited, replicas)), DRAIN_TIMEOUT + TIMEOUT)
        for replica in replicas:
            assert replica.wait() == 0, replica.output()

    def kill(self, *replicas):
        """Kills replicas without a drain."""
        for replica in replicas:
            replica.read_degraded()
            self.exclude(replica)
            self.replicas.remove(replica)
            self.gone.append(replica)
            replica.kill()

    def exclude(self, replica):
        """Removes a replica from the addresses for callers."""
        if replica.grpc in self.targets:
            self.targets.remove(replica.grpc)

    def replace(self, old, **options):
        """Starts a new replica, then drains `old`. Waits until the cluster is settled."""
        [new] = self.start(**options)
        self.remove(old)
        self.await_settled()
        return new

    def roll(self):
        """Replaces all replicas, one after the other."""
        for old in list(self.replicas):
            self.replace(old)

    def total(self, metric, **labels):
        return sum(replica.metric(metric, **labels) for replica in self.replicas)

    def degraded_checks(self):
        """Checks that were decided without their owner, those of removed replicas included."""
        return sum(replica.degraded for replica in self.gone) + self.total(DEGRADED_CHECKS)

    def assert_none_degraded(self):
        """Fails if a check was degraded. The message says how much of their time the replicas waited for a core: a
        machine that is too busy to answer within the forward budget fails as a fault does."""
        degraded = self.degraded_checks()
        if degraded > 0:
            waited = {replica.name: f"{replica.share_waited():.0%}" for replica in self.replicas}
            pytest.fail(f"{degraded:.0f} checks were decided without their owner; waited for a core: {waited}")

    def await_backup(self):
        """Waits until every slot has an up-to-date backup at another replica."""
        age = "tollgate_cluster_backup_age_seconds"
        long = 3 * BACKUP_INTERVAL
        eventually("all is backed up", lambda: all(long < replica.metric(age) for replica in self.replicas))


def has_exited(replica):
    """Whether a draining replica has exited. Until then its degraded checks count."""
    replica.read_degraded()
    return replica.child.poll() is not None
