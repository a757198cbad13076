"""The example application behind a real HTTP server."""

import pytest

import web
from server import eventually
from tollgate_client import Default, Descriptor, Outcome, PrepaidSlices, Question, RateLimitMiddleware


@pytest.fixture
async def example(start_server, serve, monkeypatch):
    """The port of the example application."""
    server = await start_server((web.EXAMPLE / "rules.yaml").read_text())
    monkeypatch.setenv("TOLLGATE_TARGET", server.address)
    monkeypatch.setenv("TOLLGATE_TIMEOUT", "10")
    return await serve(web.load_example("app").app)


async def test_request_over_its_limit_is_429_with_headers(example):
    for remaining in ("2", "1", "0"):
        status, fields, body = await web.get(example, x_user="ann")
        assert (status, body) == (200, "hello ann\n")
        assert (fields["ratelimit-limit"], fields["ratelimit-remaining"]) == ("3", remaining)
        assert 3_500 < int(fields["ratelimit-reset"]) <= 3_600
        assert "retry-after" not in fields

    status, fields, body = await web.get(example, x_user="ann")

    assert (status, body) == (429, "")
    assert (fields["ratelimit-limit"], fields["ratelimit-remaining"]) == ("3", "0")
    assert 3_500 < int(fields["retry-after"]) <= 3_600
    assert fields["retry-after"] == fields["ratelimit-reset"]
    assert (await web.get(example, x_user="bob"))[0] == 200


async def test_request_without_question_is_not_limited(example):
    for _ in range(5):
        status, fields, _ = await web.get(example, "/health", x_user="ann")
        assert status == 200
        assert "ratelimit-limit" not in fields


async def test_headers_of_middleware_replace_those_of_the_application(client, serve):
    async def app(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"RateLimit-Limit", b"old")]})
        await send({"type": "http.response.body", "body": b"ok"})

    ann = Question("edge", [Descriptor([("user", "ann")])])
    port = await serve(RateLimitMiddleware(app, client, lambda _scope: ann))

    _, fields, _ = await web.get(port)

    assert fields["ratelimit-limit"] == "3"


async def test_middleware_spends_prepaid_slices(client, counts, serve):
    async def app(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body", "body": b"ok"})

    question = Question("edge", [Descriptor([("many", "x")])])
    async with PrepaidSlices(client, hits=20, ttl=60, keys_max=1) as slices:
        port = await serve(RateLimitMiddleware(app, slices, lambda _scope: question))

        async def prepaid():
            status, fields, _ = await web.get(port)
            assert (status, fields["ratelimit-limit"]) == (200, "1000")
            return counts.outcomes[Outcome.PREPAID] > 0

        await eventually("a request is prepaid", prepaid)


async def test_default_refusal_is_429_without_headers(server, make_client, serve):
    client = await make_client(server.address, default=Default.DENY)
    server.stop()
    question = Question("edge", [Descriptor([("user", "ann")])])
    port = await serve(RateLimitMiddleware(None, client, lambda _scope: question))

    status, fields, _ = await web.get(port)

    assert status == 429
    assert not {"retry-after", "ratelimit-limit"} & fields.keys()


async def test_invalid_question_is_500_and_never_passes(client, serve):
    port = await serve(RateLimitMiddleware(None, client, lambda _scope: Question("", [])))

    assert (await web.get(port))[0] == 500
