"""The notation of clients/vectors, which clients/behaviour.md describes, and a server that follows a script."""

import asyncio
import collections
import dataclasses
import json
import pathlib

import grpc
import grpc.aio
import pytest
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2

from server import LOOPBACK
from tollgate_client import Descriptor, Limit, Metrics, OnExpiry, OnNoAnswer, Request, Unit
from tollgate_client.v1 import tollgate_pb2 as v1

FOLDER = pathlib.Path(__file__).parents[2] / "vectors"
METHODS = ("Check", "Peek", "Refund", "Reserve", "Settle", "Cancel")


def vectors(*files, key=lambda _vector: True):
    """A parameter `vector` of a test."""
    found = [each for file in files for each in json.loads((FOLDER / f"{file}.json").read_text()) if key(each)]
    return pytest.mark.parametrize("vector", found, ids=lambda each: each["name"])


def request_of(text):
    fields = {"user": text} if isinstance(text, str) else text
    descriptors = []
    if "user" in fields:
        descriptors.append(Descriptor([("user", fields["user"] + "x" * fields.get("pad", 0))]))
    for each in fields.get("descriptors", ()):
        limit = Limit(each["limit"][0], Unit[each["limit"][1].upper()]) if "limit" in each else None
        on_expiry = OnExpiry(each["on_expiry"]) if "on_expiry" in each else None
        descriptors.append(Descriptor(each["entries"], hits=each.get("hits"), limit=limit, on_expiry=on_expiry))
    domain, hits = fields.get("domain", "edge"), fields.get("hits", 1)
    return Request(domain, descriptors, hits, request_id=fields.get("request_id"))


def user_of(text):
    return text if isinstance(text, str) else text["user"]


def option_of(name, value):
    """An option of the client for one of the vectors, whose times are in ms."""
    if name in ("on_no_answer", "on_expiry"):
        return name, {"on_no_answer": OnNoAnswer, "on_expiry": OnExpiry}[name](value)
    return (name.removesuffix("_ms"), value / 1_000) if name.endswith("_ms") else (name, value)


def options_of(options):
    return dict(option_of(*option) for option in (options or {}).items())


def client_options(vector):
    """The timeout is long, unless it is given."""
    return {"timeout": 20.0, **options_of(vector.get("options"))}


def error_of(error):
    status = status_pb2.Status(code=code_pb2.Code.Value(error[0]), message=error[1])
    for reason in error[2:]:
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain="tollgate"))
    return status


def answer_of(answer):
    """The message of an answer."""
    if isinstance(answer, str):
        answer = {"verdict": answer}
    if isinstance(answer, list):
        answer = {"verdict": "allowed", "limits": [dict(zip(("remaining", "reset_after_ms"), answer, strict=True))]}
    message = v1.Answer(verdict=answer.get("verdict", "undecided").upper())
    set_times(message, answer, "delay", "retry_after")
    message.never_because = answer.get("never_because", "")
    if "error" in answer:
        message.error.CopyFrom(error_of(answer["error"]))
    for limit in answer.get("limits", ()):
        numbers = {name: limit[name] for name in ("requests_per_unit", "remaining", "refused") if name in limit}
        set_times(message.limits.add(unit="MINUTE", **numbers), limit, "reset_after", "retry_after")
    return message


def set_times(message, fields, *names):
    for name in names:
        if (milliseconds := fields.get(f"{name}_ms")) is not None:
            getattr(message, name).FromMilliseconds(milliseconds)


def described(decision):
    """A decision as vectors describe it."""
    no_answer = decision.no_answer
    return {
        "allowed": decision.allowed,
        "source": decision.source.value,
        "retry_after_ms": milliseconds_of(decision.retry_after),
        "reset_after_ms": milliseconds_of(decision.limits[0].reset_after) if decision.limits else None,
        "remaining": decision.limits[0].remaining if decision.limits else None,
        "no_answer": None if no_answer is None else [no_answer.code.name, no_answer.message],
    }


def milliseconds_of(seconds):
    return None if seconds is None else round(seconds * 1_000, 6)


def assert_has(found, expected):
    """Compares only the fields, and only as many elements of a list, as are expected."""
    for name, value in expected.items():
        there = found[name][: len(value)] if isinstance(value, list) else found[name]
        assert there == value, f"{name} of {found}"


class Counts(Metrics):
    """What a client has counted."""

    def __init__(self):
        self.outcomes = collections.Counter()
        self.batches = []
        self.lost_hits = 0

    def checked(self, outcome, latency):
        self.outcomes[outcome.value] += 1

    def sent(self, batch):
        self.batches.append(batch)

    def lost(self, hits):
        self.lost_hits += hits


@dataclasses.dataclass
class ScriptedCall:
    # The number of the server.
    server: int
    method: str
    message: Message
    # Whether it has a token.
    authorized: bool
    reply: asyncio.Future


class ScriptedServer:
    """A server for each of the addresses that is `server`. Calls wait for the replies of a script."""

    def __init__(self, addresses=("server",)):
        self.calls = asyncio.Queue()
        self.servers = []
        targets = [self._listen() if address == "server" else address for address in addresses]
        self.address = f"ipv4:{','.join(targets)}"

    def _listen(self):
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
        handlers = {
            method: grpc.unary_unary_rpc_method_handler(
                self._handler(len(self.servers), method),
                getattr(v1, f"{method}Request").FromString,
                lambda reply: reply.SerializeToString(),
            )
            for method in METHODS
        }
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("tollgate.v1.RateLimiter", handlers)])
        self.servers.append(server)
        return f"{LOOPBACK}:{server.add_insecure_port(f'{LOOPBACK}:0')}"

    async def __aenter__(self):
        for server in self.servers:
            await server.start()
        return self

    async def __aexit__(self, *_):
        for server in self.servers:
            await server.stop(None)

    def _handler(self, server, method):
        async def handle(message, context):
            authorized = "authorization" in dict(context.invocation_metadata())
            call = ScriptedCall(server, method, message, authorized, asyncio.get_running_loop().create_future())
            self.calls.put_nowait(call)
            reply = await call.reply
            if "fails" in reply:
                error = error_of(reply["fails"])
                details = (("grpc-status-details-bin", error.SerializeToString()),)
                await context.abort(grpc.StatusCode[reply["fails"][0]], error.message, details)
            answers = [answer_of(each) for each in reply.get("answers", ())]
            if method == "Reserve":
                held_as = reply.get("held_as", message.reservation_id)
                ended = reply.get("ended", False)
                return v1.ReserveResponse(answer=answers[0], reservation_id=held_as, ended=ended)
            response = getattr(v1, f"{method}Response")
            return response() if method in ("Settle", "Cancel") else response(answers=answers)

        return handle
