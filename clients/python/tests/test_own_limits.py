"""Limits of their own by the real server, as clients/behaviour.md says."""

import datetime
import math

import pytest

from tollgate_client import Client, Descriptor, InvalidRequestError, LimitResult, NoAnswerError, Source
from tollgate_client.v1 import tollgate_pb2 as v1
from vectors import FOLDER, assert_has, request_of, vectors


def entries_of(key):
    return [("user", key)] if isinstance(key, str) else [(name, value) for name, value in key]


def described(result):
    limit = result.limit or v1.OwnLimit()
    expires_after = limit.expires_after.ToTimedelta() if limit.HasField("expires_after") else None
    is_there = result.limit is not None
    return {
        "rule": result.rule,
        "error": result.error and [result.error.code.name, result.error.reason],
        "key": [[entry.key, entry.value] for entry in limit.key.entries],
        "requests_per_unit": limit.requests_per_unit if limit.HasField("requests_per_unit") else None,
        "unlimited": limit.unlimited,
        "note": limit.note,
        "set_by": limit.set_by,
        "set_by_is_claimed": limit.set_by_is_claimed,
        "unit": v1.Limit.Unit.Name(limit.unit).lower() if limit.unit else None,
        "version": limit.version if is_there else None,
        "expires_after_h": expires_after and math.ceil(expires_after / datetime.timedelta(hours=1)),
    }


class OwnLimits:
    """A client, and the versions of its limits by the names of variables."""

    def __init__(self, client):
        self._client = client
        self._versions = {}

    async def step(self, step):
        domain = step.get("domain", "edge")
        try:
            if "check" in step:
                decision = await self._client.check(request_of(step["check"]))
                assert decision.source is not Source.DEFAULT, decision
                found = {"allowed": decision.allowed}
                if (limit := decision.tightest) is not None:
                    found |= {"requests_per_unit": limit.requests_per_unit, "remaining": limit.remaining}
                assert_has(found, step["result"])
                return
            if "list" in step:
                listed = self._client.list_limits(domain, entries_of(step["list"]))
                results = [LimitResult(limit, "") async for limit in listed]
            elif "set" in step:
                limits = [limit for each in step["set"] for limit in self._limits_of(each)]
                results = await self._client.set_limits(limits, dry_run=step.get("dry_run", False))
            else:
                call, keys = ("get", step["get"]) if "get" in step else ("clear", step["clear"])
                keys = [Descriptor(entries_of(key)) for key in keys]
                results = await getattr(self._client, f"{call}_limits")(domain, keys)
        except InvalidRequestError:
            assert step["error"] == ["invalid_request"]
            return
        except NoAnswerError as error:
            assert step.get("error") == ["no_answer", error.code.name], error
            return
        assert "error" not in step
        self._compare(step, results)

    def _limits_of(self, limit):
        """One limit, or one for each of its users."""
        fields = {name: limit[name] for name in ("requests_per_unit", "unlimited", "note", "set_by") if name in limit}
        if "expires_after_h" in limit:
            fields["expires_after"] = datetime.timedelta(hours=limit["expires_after_h"])
        if "unit" in limit:
            fields["unit"] = limit["unit"].upper()
        version = limit.get("replaces_version")
        further = [[("user", str(user))] for user in range(limit["users"])] if "users" in limit else [[]]
        for entries in further:
            key = v1.Descriptor(
                entries=[v1.Entry(key=key, value=value) for key, value in entries_of(limit["key"]) + entries]
            )
            own = v1.OwnLimit(domain="edge", key=key, **fields)
            yield v1.SetLimit(limit=own, replaces_version=self._versions.get(version, version))

    def _compare(self, step, results):
        if "users" in step:
            users = [result.limit.key.entries[-1].value for result in results]
            assert sorted(users) == sorted(str(user) for user in range(step["users"]))
        elif "results" not in step:
            assert all(result.error is None for result in results), results
        else:
            for result, expected in zip(results, step["results"], strict=True):
                assert_has(described(result), self._bound(result, expected))

    def _bound(self, result, expected):
        """What is expected, with the version that a variable has. It is bound to the first one that is received."""
        name = expected.get("version")
        if not isinstance(name, str):
            return expected
        if name not in self._versions:
            assert all(result.limit.version > other for other in self._versions.values())
            self._versions[name] = result.limit.version
        return {**expected, "version": self._versions[name]}


@vectors("own_limits")
async def test_own_limits_have_their_results(vector, start_server, make_client):
    server = await start_server((FOLDER / "own_limits.yaml").read_text())
    token = vector.get("token", "secret")
    if "invalid" in vector:
        with pytest.raises(ValueError, match=vector["invalid"]):
            Client(server.address, admin_token=token)
        return
    own_limits = OwnLimits(await make_client(server.address, admin_token=token))
    for step in vector["steps"]:
        await own_limits.step(step)
