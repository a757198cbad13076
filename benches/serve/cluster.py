"""Two replicas in one cluster, over mutual TLS with a secret. The calls are of one key, which the other replica owns."""

import contextlib
import http.client
import json
import re

import measure
import servers
from servers import LOOPBACK, Tollgate, eventually

SECRET = "a-secret-of-the-replicas-that-are-measured"


class Replica(Tollgate):
    def __init__(self, binary, scratch, secret, *flags):
        scratch.mkdir()
        super().__init__(
            *(binary, scratch, "--cluster-listen", f"{LOOPBACK}:0", "--cluster-secret-file", secret),
            *("--cluster-lease-from", "off", *flags),
        )

    def get(self, listener, path):
        connection = http.client.HTTPConnection(*self.listeners[listener].rsplit(":", 1), timeout=servers.TIMEOUT)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().read().decode()

    def metric(self, name):
        """The sum of the series with this name."""
        rows = re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", self.get("metrics", "/metrics"), re.MULTILINE)
        return sum(map(float, rows))

    def cluster_address(self):
        """The address for other replicas."""
        wanted = "listening for links from other replicas"
        return next((event["advertised"] for event in self.events() if event.get("message") == wanted), None)

    def is_settled(self):
        """Whether this replica knows the other one, and every slot is at its intended owner."""
        view = json.loads(self.get("admin", "/cluster"))
        serving = [member for member in view["members"] if member["state"] == "serving"]
        return len(serving) == 2 and view["moving"] == 0


class Pair:
    """Two replicas, measured together. The calls go to the one that does not own the key, and are forwarded."""

    name, path, body = "Tollgate, two replicas", Tollgate.path, staticmethod(Tollgate.body)

    def __init__(self, binary, scratch, *flags):
        secret = scratch / "secret"
        secret.write_text(f"{SECRET}\n")
        secret.chmod(0o600)
        self.binary, self.scratch, self.secret, self.flags = binary, scratch, secret, flags

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            first = stack.enter_context(self.replica("first"))
            seed = ("--cluster-seed", eventually("the link listens", first.cluster_address))
            second = stack.enter_context(self.replica("second", *seed))
            self.replicas = [first, second]
            eventually("the replicas agree", lambda: all(replica.is_settled() for replica in self.replicas))
            self.forwarding = self.find_forwarding()
            self.address = self.forwarding.address
            self.stack = stack.pop_all()
        return self

    def __exit__(self, *_):
        self.stack.close()

    def replica(self, name, *seed):
        return Replica(self.binary, self.scratch / name, self.secret, *self.flags, *seed)

    @property
    def pids(self):
        return [replica.pid for replica in self.replicas]

    def find_forwarding(self):
        """The replica that does not own the key."""
        first, second = self.replicas
        measure.h2load(first, self.scratch, 1, 1, 10)
        return first if first.metric("tollgate_cluster_forwarded_checks_total") else second
