import assert from "node:assert/strict";
import { test } from "node:test";

import { InvalidRequestError, Stats } from "tollgate";
import { connectedClient, PATIENT, startTollgate, user } from "./processes.js";

test("concurrent_checks_share_calls", async (t) => {
  const { address } = await startTollgate(t);
  const stats = new Stats();
  const client = await connectedClient(t, address, { ...PATIENT, metrics: stats });

  await Promise.all(Array.from({ length: 100 }, (_, i) => client.check("shop", user(`user ${i}`))));

  // Two calls with the first two checks, then one with the checks that came meanwhile.
  assert.deepEqual([stats.batches, stats.batchedChecks, stats.largestBatch], [3, 100, 98]);
});

test("check_of_idle_client_is_sent_at_once", async (t) => {
  const { address } = await startTollgate(t);
  const stats = new Stats();
  const client = await connectedClient(t, address, { ...PATIENT, metrics: stats });

  const decision = client.check("shop", user("ada"));

  assert.equal(stats.batches, 1, "before anything is awaited");
  assert.equal((await decision).allowed, true);
});

test("batches_have_at_most_their_maximum", async (t) => {
  const { address } = await startTollgate(t);
  const stats = new Stats();
  const client = await connectedClient(t, address, { ...PATIENT, maxBatch: 10, maxCalls: 1, metrics: stats });

  await Promise.all(Array.from({ length: 31 }, (_, i) => client.check("shop", user(`user ${i}`))));

  assert.deepEqual([stats.batches, stats.largestBatch], [4, 10]);
});

test("large_checks_are_split_into_calls_that_the_server_accepts", async (t) => {
  const { address } = await startTollgate(t);
  const stats = new Stats();
  const client = await connectedClient(t, address, { ...PATIENT, maxCalls: 1, metrics: stats });

  const large = (i) => client.check("shop", user(`${i}${"\u20ac".repeat(400_000)}`));
  const decisions = await Promise.all(Array.from({ length: 5 }, (_, i) => large(i)));

  assert.ok(decisions.every(({ source, allowed }) => source === "server" && allowed));
  assert.deepEqual([stats.batches, stats.largestBatch], [3, 2]);
});

test("answers_belong_to_their_checks", async (t) => {
  const { address } = await startTollgate(t);
  const client = await connectedClient(t, address, { ...PATIENT, maxCalls: 1 });

  const hits = Array.from({ length: 60 }, (_, i) => (i % 3) + 1);
  const decisions = await Promise.all(hits.map((n, i) => client.check("shop", user(`user ${i}`), n)));

  assert.deepEqual(
    decisions.map(({ limits: [{ remaining }] }) => remaining),
    hits.map((n) => 3 - n),
  );
});

test("invalid_check_of_a_batch_fails_alone", async (t) => {
  const { address } = await startTollgate(t);
  const client = await connectedClient(t, address, { ...PATIENT, maxCalls: 1 });

  // The first is an error of its answer. The second, in a long message, is an error of the whole call.
  for (const invalid of [[], Array.from({ length: 1_000 }, () => ({ entries: [["user", "somebody"]] }))]) {
    const name = `beside ${invalid.length}`;
    const checks = [user(name), user(name), invalid, user(name), user(name)];
    const outcomes = await Promise.allSettled(checks.map((descriptors) => client.check("shop", descriptors)));

    assert.ok(outcomes[2].reason instanceof InvalidRequestError, String(outcomes[2].reason));
    outcomes.splice(2, 1);
    assert.deepEqual(
      outcomes.map(({ value }) => [value.allowed, value.source]),
      [[true, "server"], [true, "server"], [true, "server"], [false, "server"]],
    );
  }
});

test("calls_above_the_bound_of_the_server_are_halved", async (t) => {
  const { address } = await startTollgate(t, { flags: ["--api-max-requests", "10"] });
  const stats = new Stats();
  const client = await connectedClient(t, address, { ...PATIENT, maxCalls: 1, metrics: stats });

  const crowd = [{ entries: [["crowd", "all"]] }];
  const decisions = await Promise.all(Array.from({ length: 61 }, () => client.check("shop", crowd)));

  assert.equal(decisions.filter(({ allowed }) => allowed).length, 50);
  assert.ok(decisions.every(({ source }) => source === "server"));
  // Calls of 1, 60, two of 30, four of 15 and eight of 7 or 8 checks.
  assert.equal(stats.batches, 16);
});
