// What the vectors cannot say: that the real server and the client understand each other, connections, and what only
// Node has.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, InvalidRequestError, PrepaidSlices } from "tollgate-ratelimit-client";
import { clientOf, connectedClient, eventually, PATIENT, requestOf, silentServer, startTollgate } from "./processes.js";

const limitOf = (requestsPerUnit, unit) => ({ requestsPerUnit, unit });

async function remaining(client, request) {
  const { noAnswer, limits } = await client.peek(request);
  assert.equal(noAnswer, undefined);
  return limits[0].remaining;
}

test("concurrent_checks_pass_exactly_the_limit", async (t) => {
  const { address } = await startTollgate(t);
  const clients = [clientOf(t, address, PATIENT), clientOf(t, address, { ...PATIENT, denyCacheKeys: 0 })];

  const checks = Array.from({ length: 200 }, (_, i) => clients[i % 2].check(requestOf("crowd", "all")));
  const decisions = await Promise.all(checks);

  assert.equal(decisions.filter(({ allowed }) => allowed).length, 50);
  assert.equal(decisions.filter(({ source }) => source === "default").length, 0);
});

test("decision_says_limit_remaining_and_times", async (t) => {
  const client = clientOf(t, (await startTollgate(t)).address, PATIENT);

  const { rule, ...limit } = (await client.check({ ...requestOf("bucket", "a"), hits: 2 })).limits[0];
  const refused = await client.check({ ...requestOf("bucket", "a"), hits: 2 });

  assert.deepEqual([limit.descriptor, limit.requestsPerUnit, limit.unit, limit.remaining], [0, 3, "hour", 1]);
  assert.ok(rule.includes("bucket"), rule);
  assert.equal(refused.allowed, false);
  // One token comes back in 20 min.
  assert.ok(refused.retryAfterMs > 0 && refused.retryAfterMs <= 1_200_000, refused.retryAfterMs);
  assert.deepEqual([refused.limits[0].refused, refused.limits[0].remaining], [true, 1]);
  await client.refund({ ...requestOf("bucket", "a"), hits: 2 });
  assert.equal(await remaining(client, requestOf("bucket", "a")), 3);
});

test("limits_in_shadow_or_with_candidate_say_what_would_be_refused", async (t) => {
  const client = clientOf(t, (await startTollgate(t)).address, PATIENT);
  const both = [{ entries: [["shadow", "any"]] }, { entries: [["tried", "any"]] }];

  const { allowed, limits } = await client.check({ domain: "shop", descriptors: both });

  assert.equal(allowed, true);
  const said = limits.map(({ refused, refusedInShadow, refusedByCandidate }) => [
    refused,
    refusedInShadow,
    refusedByCandidate,
  ]);
  assert.deepEqual(said, [
    [false, true, false],
    [false, false, true],
  ]);
});

test("limit_and_hits_of_descriptor_replace_others", async (t) => {
  const client = clientOf(t, (await startTollgate(t)).address, PATIENT);
  const descriptor = { entries: [["user", "ada"]], limit: limitOf(9, "day") };

  const { limits } = await client.check({ domain: "shop", descriptors: [{ ...descriptor, hits: 4 }], hits: 2 });

  const [{ requestsPerUnit, unit, remaining }] = limits;
  assert.deepEqual([requestsPerUnit, unit, remaining], [9, "day", 5]);
});

test("queue_rule_delays_later_checks", async (t) => {
  const client = clientOf(t, (await startTollgate(t)).address, PATIENT);

  const turn = () => client.check(requestOf("turn", "mine"));
  const delays = (await Promise.all([turn(), turn()])).map(({ delayMs }) => delayMs);

  assert.equal(Math.min(...delays), 0);
  assert.ok(Math.max(...delays) > 0 && Math.max(...delays) <= 50, String(delays));
});

test("invalid_request_is_an_error_that_names_the_place", async (t) => {
  const client = clientOf(t, "127.0.0.1:1", PATIENT);
  const entries = [["user", "ada"]];
  const valid = [{ entries }];
  for (const [place, domain, descriptors, hits, requestId] of [
    ["domain", undefined, valid],
    ["domain", "\ud800", valid],
    ["descriptors", "shop", "user"],
    ["descriptors[0].entries", "shop", [{ user: "ada" }]],
    ["descriptors[0].entries", "shop", [null]],
    ["descriptors[0].entries[0]", "shop", [{ entries: ["user"] }]],
    ["descriptors[1].entries[0]: value", "shop", [{ entries }, { entries: [["user", 7]] }]],
    ["descriptors[0].entries[0]: value", "shop", [{ entries: [["user", "\udfff"]] }]],
    ["descriptors[0].hits", "shop", [{ entries, hits: -1 }]],
    ["descriptors[0].limit.requestsPerUnit", "shop", [{ entries, limit: limitOf(2 ** 32, "day") }]],
    ["descriptors[0].limit.unit", "shop", [{ entries, limit: limitOf(1, "fortnight") }]],
    ["hits", "shop", valid, -1],
    ["hits", "shop", valid, 1.5],
    ["hits", "shop", valid, "1"],
    ["requestId", "shop", valid, 1, "\ud800"],
  ])
    for (const checker of [client, new PrepaidSlices(client)])
      await assert.rejects(checker.check({ domain, descriptors, hits, requestId }), (error) => {
        assert.ok(error instanceof InvalidRequestError && error.message.startsWith(place), String(error));
        return true;
      });
  await assert.rejects(client.reserve(requestOf("a", "b"), { onExpiry: "shrug" }), InvalidRequestError);
  const invalid = () => new Client("127.0.0.1:1", { onNoAnswer: "shrug" });
  assert.throws(invalid, { name: "RangeError", message: /onNoAnswer/ });
});

test("new_client_connects_before_its_first_check", async (t) => {
  const { address, sockets } = await silentServer(t);
  clientOf(t, address);

  await eventually("a connection", () => sockets.size === 1);
});

test("frozen_server_delays_no_check_beyond_its_deadline", async (t) => {
  const server = await startTollgate(t);
  const client = await connectedClient(t, server.address, { timeoutMs: 200, callsMax: 1 });
  await server.pause();

  const begin = performance.now();
  const checks = Array.from({ length: 50 }, (_, i) => client.check(requestOf("user", `user ${i}`)));
  const decisions = await Promise.all(checks);
  assert.ok(performance.now() - begin < 10_000);
  assert.ok(decisions.every(({ noAnswer }) => noAnswer.code === "DEADLINE_EXCEEDED"));

  await server.resume();
  const answered = async () => (await client.check(requestOf("user", "bob"))).source === "server";
  await eventually("the server answers", answered);
});

test("client_reconnects_to_restarted_server", async (t) => {
  const first = await startTollgate(t);
  const client = await connectedClient(t, first.address, PATIENT);
  const source = async (user) => (await client.check(requestOf("user", user))).source;
  await first.stop();
  await eventually("the server is gone", async () => (await source("ada")) === "default");

  await startTollgate(t, { flags: ["--grpc-listen", first.address] });

  await eventually("the server is back", async () => (await source("bob")) === "server");
});

test("calls_are_balanced_over_all_addresses", async (t) => {
  const servers = await Promise.all([startTollgate(t), startTollgate(t)]);
  const client = clientOf(t, `ipv4:${servers.map(({ address }) => address).join(",")}`, PATIENT);
  const one = await Promise.all(servers.map(({ address }) => connectedClient(t, address, PATIENT)));
  const crowd = requestOf("crowd", "all");

  await eventually("both servers are asked", async () => {
    await client.check(crowd);
    return (await Promise.all(one.map((each) => remaining(each, crowd)))).every((left) => left < 50);
  });
  await servers[0].stop();
  await eventually("the other one answers", async () => (await client.check(crowd)).source === "server");
});

test("settlement_of_less_than_reserved_gives_the_rest_back", async (t) => {
  const client = clientOf(t, (await startTollgate(t)).address, PATIENT);
  // A call of a model is one request, and as many tokens as it turns out.
  const tokens = { entries: [["tokens", "ada"]] };
  const descriptors = [{ entries: [["user", "ada"]], hits: 1 }, tokens];
  const reservation = await client.reserve({ domain: "shop", descriptors, hits: 800 });
  assert.equal(reservation.decision.allowed, true);
  assert.equal(await remaining(client, requestOf("tokens", "ada")), 200);
  // The reservation keeps what it was made with.
  tokens.entries[0][1] = "bob";

  const settled = await client.settle(reservation, 300);

  assert.equal(settled.unknown, false);
  const { resetAfterMs, ...limit } = settled.limits[1];
  const expected = { descriptor: 1, rule: "of-tokens", outcome: "open", reserved: 800, notCharged: 0, remaining: 700 };
  assert.deepEqual(limit, expected);
  assert.ok(resetAfterMs > 0, resetAfterMs);
  assert.equal(await remaining(client, requestOf("user", "ada")), 2);
  assert.deepEqual(await client.settle(reservation, 999), settled, "a repeated settlement answers as the first one");
});

test("expired_reservation_is_released_or_charged_by_its_terms", async (t) => {
  const client = clientOf(t, (await startTollgate(t)).address, PATIENT);
  const reserve = (name, terms) => client.reserve({ ...requestOf("tokens", name), hits: 800 }, terms);
  const charged = await reserve("bob", { ttlMs: 50, onExpiry: "charge" });
  // The later one, so that both have expired when it has.
  const released = await reserve("ada", { ttlMs: 50 });

  const left = () => remaining(client, requestOf("tokens", "ada"));
  await eventually("tokens are given back", async () => (await left()) === 1_000);

  assert.equal((await client.settle(released, 1)).limits[0].outcome, "released");
  assert.equal((await client.settle(charged, 1)).limits[0].outcome, "charged");
});

test("concurrent_slices_of_one_key_pass_what_is_charged", async (t) => {
  const client = await connectedClient(t, (await startTollgate(t)).address, { ...PATIENT, denyCacheKeys: 0 });
  const both = [new PrepaidSlices(client, { hits: 10 }), new PrepaidSlices(client, { hits: 10 })];
  let [passed, prepaid] = [0, 0];
  const checks = async (slices) => {
    for (let i = 0; i < 20; i += 1) {
      const { allowed, source } = await slices.check(requestOf("crowd", "all"));
      if (allowed) passed += 1;
      if (source === "prepaid") prepaid += 1;
    }
  };

  await Promise.all(Array.from({ length: 8 }, (_, i) => checks(both[i % 2])));
  await Promise.all(both.map((slices) => slices.close()));

  assert.ok(prepaid > 0 && passed <= 50, `${passed} passed, ${prepaid} prepaid`);
  assert.equal(await remaining(client, requestOf("crowd", "all")), 50 - passed);
  assert.equal((await both[0].check(requestOf("tokens", "red"))).source, "server");
});

test("slice_that_is_not_used_is_given_back", async (t) => {
  const client = await connectedClient(t, (await startTollgate(t)).address, PATIENT);
  const slices = new PrepaidSlices(client, { hits: 20, ttlMs: 400 });
  t.after(() => slices.close());
  const left = () => remaining(client, requestOf("tokens", "red"));
  await slices.check(requestOf("tokens", "red"));

  await eventually("a slice is held", async () => (await left()) === 979);
  await eventually("it is given back", async () => (await left()) === 999);
});
