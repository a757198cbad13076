"""Replicas of one cluster as processes on loopback: started, replaced, drained and killed."""

import itertools
import json
import pathlib
import re
import signal

from processes import LOOPBACK, Tollgate, eventually, http_call

SECRET = "a secret that only these replicas share"
# By the year, so that no window turns while a test looks.
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
# For tests of what is decided and not how soon: whoever is asked may take half of what its caller waits.
PATIENT = ["--cluster-forward-budget-max", "5s"]
# In seconds, unless set.
BACKUP_INTERVAL = 0.1
# Of replicas, so that no two write the same log.
NUMBERS = itertools.count(1)
# How long a cluster may take until all replicas agree who holds what.
SETTLED_WITHIN = 30.0


class Replica(Tollgate):
    """A process of a cluster. `cluster` is where it listens to others, `advertised` where it tells them to."""

    cluster = advertised = None

    def __init__(self, name, rules, log, *, host=LOOPBACK, space=None, cluster_listen=None, flags=(), **options):
        self.name = name
        self.space = space
        within = space.within if space else ()
        flags = ["--cluster-listen", cluster_listen or f"{host}:0", "--api-dynamic-metadata", "true", *flags]
        super().__init__(rules, log, flags=flags, host=host, within=within, **options)

    def await_listening(self):
        super().await_listening()
        told = eventually("it listens to other replicas", lambda: self.event("listening for links from other replicas"))
        self.cluster, self.advertised = told["listen"], told["advertised"]

    def event(self, message):
        """The first event in the log with this message, if there is one."""
        return next((event for event in self.events() if event.get("message") == message), None)

    def call(self, address, *arguments):
        return (self.space.call if self.space else http_call)(address, *arguments)

    def view(self):
        """How the cluster looks from here."""
        self.must_run()
        answer = self.call(self.admin, "/cluster")
        assert answer.code == 200, answer.body
        return answer.json()

    def states(self):
        """What each member is doing, by its id."""
        return {member["id"]: member["state"] for member in self.view()["members"]}

    def serving(self):
        return sorted(member for member, state in self.states().items() if state == "serving")

    def metric(self, name, **labels):
        """The sum of the series of this name that have these labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        lines = self.call(self.metrics, "/metrics").body.splitlines()
        found = [line for line in lines if re.match(rf"{name}(\{{|\s)", line)]
        assert found, f"there is no {name}"
        return sum(float(line.rsplit(" ", 1)[1]) for line in found if all(one in line for one in wanted))

    def post(self, path):
        return self.call(self.admin, path, "POST")

    def open_files(self):
        return len(list(pathlib.Path(f"/proc/{self.child.pid}/fd").iterdir()))

    def freeze(self):
        """It stops and says nothing, and its system still takes connections."""
        self.child.send_signal(signal.SIGSTOP)

    def thaw(self):
        self.child.send_signal(signal.SIGCONT)

    def kill(self):
        if self.child.poll() is None:
            # A process that is stopped is not ended by a gentle signal.
            self.thaw()
        super().kill()


class Cluster:
    """Some replicas. Those that are started know those that are there."""

    def __init__(self, ends, folder, rules, flags=(), proxies=None, **options):
        self.ends = ends
        self.folder = folder
        self.rules = rules
        self.flags = list(flags)
        self.proxies = proxies
        self.options = {"drain_delay": "100ms", **options}
        self.secret = folder / "cluster.secret"
        self.secret.write_text(f"{SECRET}\n")
        self.replicas = []
        # Where callers may ask: those that are ready, and not told to leave.
        self.targets = []

    def launch(self, *, seeds=None, flags=(), space=None, secret=None, **options):
        """Starts one, and does not wait until it is ready."""
        name = f"replica-{next(NUMBERS)}"
        seeds = [one.advertised for one in self.replicas] if seeds is None else seeds
        more = [part for seed in seeds for part in ("--cluster-seed", seed)]
        more += ["--cluster-secret-file", str(secret or self.secret)]
        if self.proxies:
            more += ["--cluster-advertise", self.proxies.open(name)]
        log = self.folder / f"{name}.log"
        options = {**self.options, **options}
        replica = Replica(name, self.rules, log, space=space, flags=[*self.flags, *more, *flags], **options)
        self.ends.callback(replica.kill)
        replica.await_listening()
        if self.proxies:
            self.proxies.leads_to(name, replica)
        self.replicas.append(replica)
        return replica

    def start(self, count=1, **options):
        """Starts so many and waits until all answer and agree."""
        started = [self.launch(**options) for _ in range(count)]
        self.ready()
        return started

    def ready(self):
        """Waits until all that were launched answer, and agree."""
        for replica in self.replicas:
            replica.await_ready()
            if replica.grpc not in self.targets:
                self.targets.append(replica.grpc)
        self.settled()

    def settled(self, patience=SETTLED_WITHIN):
        """Waits until all see the same members, and every slot is held by whoever should hold it."""
        eventually(f"{len(self.replicas)} replicas agree", self.agree, patience)

    def agree(self):
        views = [replica.view() for replica in self.replicas]
        members = [[one["id"] for one in view["members"] if one["state"] == "serving"] for view in views]
        return (
            all(view["moving"] == 0 and view["view"] == views[0]["view"] for view in views)
            and all(len(one) == len(self.replicas) for one in members)
            and not any(view["isolated"] for view in views)
        )

    def remove(self, *replicas):
        """Drains some at once, to their ends."""
        for replica in replicas:
            replica.terminate()
            self.avoid(replica)
            self.replicas.remove(replica)
        for replica in replicas:
            assert replica.wait() == 0, replica.output()

    def kill(self, *replicas):
        """Ends some without a word."""
        for replica in replicas:
            self.avoid(replica)
            self.replicas.remove(replica)
            replica.kill()

    def avoid(self, replica):
        """Callers ask it no more."""
        if replica.grpc in self.targets:
            self.targets.remove(replica.grpc)

    def replace(self, old, **options):
        """Starts another one, and drains `old` when it serves. Waits until all is settled."""
        [new] = self.start(**options)
        self.remove(old)
        self.settled()
        return new

    def roll(self):
        """Replaces all of them, one after the other."""
        for old in list(self.replicas):
            self.replace(old)

    def total(self, metric, **labels):
        return sum(replica.metric(metric, **labels) for replica in self.replicas)

    def backed_up(self):
        """Waits until nothing has changed for so long that all of it is kept by another replica, too."""
        age = "tollgate_cluster_backup_age_seconds"
        long = 3 * BACKUP_INTERVAL
        eventually("all is backed up", lambda: all(long < replica.metric(age) for replica in self.replicas))

    def told(self):
        """What all replicas see, to be read where something has not come true."""
        return json.dumps([replica.view() for replica in self.replicas], indent=1)
