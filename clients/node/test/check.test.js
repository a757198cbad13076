import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, InvalidRequestError, Stats, tightest } from "tollgate";
import { clientOf, connectedClient, PATIENT, startTollgate, user } from "./processes.js";

const limitOf = (requestsPerUnit, unit) => ({ requestsPerUnit, unit });

test("concurrent_checks_pass_exactly_the_limit", async (t) => {
  const { address } = await startTollgate(t);
  const clients = [clientOf(t, address, PATIENT), clientOf(t, address, { ...PATIENT, denyCacheKeys: 0 })];

  const crowd = [{ entries: [["crowd", "all"]] }];
  const decisions = await Promise.all(Array.from({ length: 200 }, (_, i) => clients[i % 2].check("shop", crowd)));

  assert.equal(decisions.filter(({ allowed }) => allowed).length, 50);
  assert.equal(decisions.filter(({ source }) => source === "default").length, 0);
});

test("decision_says_limit_remaining_and_times", async (t) => {
  const { address } = await startTollgate(t);
  const client = clientOf(t, address, PATIENT);

  const passed = await client.check("shop", [{ entries: [["bucket", "a"]] }], 2);
  const refused = await client.check("shop", [{ entries: [["bucket", "a"]] }], 2);

  const { allowed, source, delayMs, retryAfterMs, degraded, noAnswer } = passed;
  const nothing = { retryAfterMs: undefined, noAnswer: undefined };
  assert.deepEqual(
    { allowed, source, delayMs, retryAfterMs, degraded, noAnswer },
    { allowed: true, source: "server", delayMs: 0, degraded: false, ...nothing },
  );
  const [limit] = passed.limits;
  assert.deepEqual([limit.descriptor, limit.requestsPerUnit, limit.unit, limit.remaining], [0, 3, "hour", 1]);
  assert.ok(limit.rule.includes("bucket"), limit.rule);
  assert.equal(refused.allowed, false);
  // One token comes back in 20 min.
  assert.ok(refused.retryAfterMs > 0 && refused.retryAfterMs <= 1_200_000, refused.retryAfterMs);
  assert.deepEqual([refused.limits[0].refused, refused.limits[0].remaining], [true, 1]);
});

test("limits_in_shadow_or_with_candidate_say_what_would_be_refused", async (t) => {
  const { address } = await startTollgate(t);
  const client = clientOf(t, address, PATIENT);
  const both = [{ entries: [["shadow", "any"]] }, { entries: [["tried", "any"]] }];

  const { allowed, limits } = await client.check("shop", both);

  assert.equal(allowed, true);
  const said = limits.map(({ refused, refusedInShadow, refusedByCandidate, degraded }) => [
    refused,
    refusedInShadow,
    refusedByCandidate,
    degraded,
  ]);
  assert.deepEqual(said, [
    [false, true, false, false],
    [false, false, true, false],
  ]);
});

test("limit_and_hits_of_descriptor_replace_others", async (t) => {
  const { address } = await startTollgate(t);
  const client = clientOf(t, address, PATIENT);

  const entries = [["user", "ada"]];
  const decision = await client.check("shop", [{ entries, limit: limitOf(9, "day"), hits: 4 }], 2);
  const looked = await client.check("shop", [{ entries, limit: limitOf(9, "day"), hits: 0 }], 2);

  const [{ requestsPerUnit, unit, remaining }] = decision.limits;
  assert.deepEqual([requestsPerUnit, unit, remaining], [9, "day", 5]);
  assert.equal(looked.limits[0].remaining, 5);
});

test("tightest_limit_of_several_is_reported", async (t) => {
  const { address } = await startTollgate(t);
  const client = clientOf(t, address, PATIENT);

  const both = [{ entries: [["crowd", "b"]] }, { entries: [["user", "b"]] }];
  const passed = await client.check("shop", both, 2);
  const refused = await client.check("shop", both, 2);

  for (const decision of [passed, refused]) assert.equal(tightest(decision).descriptor, 1);
  assert.equal(tightest(await client.check("shop", [{ entries: [["free", "x"]] }])), undefined);
});

test("peek_charges_nothing_and_refund_gives_back", async (t) => {
  const { address } = await startTollgate(t);
  const client = clientOf(t, address, PATIENT);
  const remaining = async () => (await client.peek("shop", user("ada"))).limits[0].remaining;

  assert.deepEqual([await remaining(), await remaining()], [3, 3]);
  await client.check("shop", user("ada"), 3);
  assert.equal((await client.peek("shop", user("ada"))).allowed, false);
  const refund = await client.refund("shop", user("ada"), 2);
  assert.deepEqual([refund.allowed, refund.source], [true, "server"]);
  assert.equal(await remaining(), 2);
});

test("queue_rule_delays_later_checks", async (t) => {
  const { address } = await startTollgate(t);
  const client = clientOf(t, address, PATIENT);

  const turn = () => client.check("shop", [{ entries: [["turn", "mine"]] }]);
  const delays = (await Promise.all([turn(), turn()])).map(({ delayMs }) => delayMs);

  assert.equal(Math.min(...delays), 0);
  assert.ok(Math.max(...delays) > 0 && Math.max(...delays) <= 50, String(delays));
});

test("request_that_server_refuses_as_invalid_is_an_error", async (t) => {
  const { address } = await startTollgate(t);
  const client = clientOf(t, address, PATIENT);

  const deepest = { entries: Array.from({ length: 129 }, () => ["user", "ada"]) };
  for (const operation of ["check", "peek", "refund"]) {
    for (const [domain, descriptors] of [
      ["", user("ada")],
      ["shop", []],
      ["shop", [deepest]],
    ])
      await assert.rejects(client[operation](domain, descriptors), (error) => {
        assert.ok(error instanceof InvalidRequestError && error.message, `${operation} ${domain}: ${error}`);
        return true;
      });
  }
});

test("invalid_argument_is_an_error_without_a_call", async (t) => {
  const stats = new Stats();
  const client = clientOf(t, "127.0.0.1:1", { metrics: stats });

  const entries = [["user", "ada"]];
  for (const [place, ...request] of [
    ["domain", undefined, user("ada")],
    ["domain", "\ud800", user("ada")],
    ["descriptors", "shop", "user"],
    ["descriptors[0].entries", "shop", [{ user: "ada" }]],
    ["descriptors[0].entries", "shop", [null]],
    ["descriptors[0].entries[0]", "shop", [{ entries: ["user"] }]],
    ["descriptors[1].entries[0]: value", "shop", [{ entries }, { entries: [["user", 7]] }]],
    ["descriptors[0].entries[0]: value", "shop", user("\udfff")],
    ["descriptors[0].hits", "shop", [{ entries, hits: -1 }]],
    ["descriptors[0].limit.requestsPerUnit", "shop", [{ entries, limit: limitOf(2 ** 32, "day") }]],
    ["descriptors[0].limit.unit", "shop", [{ entries, limit: limitOf(1, "fortnight") }]],
    ["hits", "shop", user("ada"), 0],
    ["hits", "shop", user("ada"), 1.5],
    ["hits", "shop", user("ada"), "1"],
    ["size", "shop", user("a".repeat(1 << 20))],
  ])
    await assert.rejects(client.check(...request), (error) => {
      assert.ok(error instanceof InvalidRequestError, String(error));
      assert.ok(error.message.includes(place), error.message);
      return true;
    });
  assert.equal(stats.batches, 0);
});

test("invalid_option_is_an_error_that_names_it", () => {
  for (const [name, value] of [
    ["timeoutMs", 0],
    ["maxBatch", 257],
    ["maxCalls", 1.5],
    ["maxQueue", Number.NaN],
    ["denyCacheKeys", -1],
    ["denyCacheMaxMs", "1"],
    ["onNoAnswer", "shrug"],
  ])
    assert.throws(() => new Client("127.0.0.1:1", { [name]: value }), { name: "RangeError", message: RegExp(name) });
});

test("stats_count_decisions_and_latency", async (t) => {
  const { address } = await startTollgate(t);
  const stats = new Stats();
  const client = await connectedClient(t, address, { ...PATIENT, denyCacheMaxMs: 60_000, metrics: stats });

  for (let i = 0; i < 5; i += 1) await client.check("shop", user("ada"));

  const { checks, allowed, denied, deniedLocally, defaults, batches, batchedChecks, largestBatch } = stats;
  assert.deepEqual(
    [checks, allowed, denied, deniedLocally, defaults.size, batches, batchedChecks, largestBatch],
    [5, 3, 2, 1, 0, 4, 4, 1],
  );
  assert.ok(stats.latencyMsMax > 0 && stats.latencyMsSum >= stats.latencyMsMax);
});

test("metrics_that_throw_reject_the_check_and_later_ones_pass", async (t) => {
  const { address } = await startTollgate(t);
  for (const name of ["checked", "batchSent"]) {
    const metrics = new Stats();
    const client = clientOf(t, address, { ...PATIENT, maxCalls: 1, metrics });
    metrics[name] = () => {
      throw Error("no disk");
    };
    await assert.rejects(client.check("shop", user(name)), { message: "no disk" });
    delete metrics[name];
    assert.equal((await client.check("shop", user(name))).source, "server");
  }
});
