import assert from "node:assert/strict";
import { test } from "node:test";

import { PrepaidSlices, Stats } from "tollgate";
import { clientOf, connectedClient, eventually, PATIENT, startTollgate, user } from "./processes.js";

// 1,000 an hour.
const RED = [{ entries: [["tokens", "red"]] }];
const BLUE = [{ entries: [["tokens", "blue"]] }];
const MINUTE = 60_000;

async function connect(t, options = {}) {
  const stats = new Stats();
  const server = await startTollgate(t);
  const client = await connectedClient(t, server.address, { ...PATIENT, metrics: stats, ...options });
  return { server, stats, client };
}

function slicesOf(test, client, options) {
  const slices = new PrepaidSlices(client, { ttlMs: MINUTE, ...options });
  test.after(() => slices.close());
  return slices;
}

async function remaining(client, descriptors) {
  const { source, limits } = await client.peek("shop", descriptors);
  assert.equal(source, "server");
  return limits[0].remaining;
}

// Checks until the slice is there, and returns the number of checks, which have all passed.
async function checkUntilPrepaid(slices, descriptors) {
  let passed = 0;
  await eventually("a check is prepaid", async () => {
    const { allowed, source } = await slices.check("shop", descriptors);
    assert.ok(allowed);
    passed += 1;
    return source === "prepaid";
  });
  return passed;
}

test("slice_is_spent_without_calls_and_settled_at_close", async (t) => {
  const { client, stats } = await connect(t);
  const slices = slicesOf(t, client, { hits: 50 });
  const passed = await checkUntilPrepaid(slices, RED);
  const { batches } = stats;

  for (let i = 0; i < 20; i += 1) {
    const { allowed, source, limits } = await slices.check("shop", RED);
    assert.deepEqual([allowed, source], [true, "prepaid"]);
    assert.ok(limits[0].remaining < 1_000 && limits[0].resetAfterMs > 0, JSON.stringify(limits));
  }

  assert.deepEqual([stats.batches, stats.prepaid, stats.allowed], [batches, 21, passed + 20]);
  assert.equal(await remaining(client, RED), 1_000 - 50 - (passed - 1), "the slice is held");
  await slices.close();
  assert.equal(await remaining(client, RED), 1_000 - 20 - passed);
  assert.equal((await slices.check("shop", RED)).source, "server");
});

test("concurrent_slices_of_one_key_pass_exactly_the_limit", async (t) => {
  const { server, client } = await connect(t, { denyCacheKeys: 0 });
  const other = await connectedClient(t, server.address, { ...PATIENT, denyCacheKeys: 0 });
  const crowd = [{ entries: [["crowd", "all"]] }];
  const both = [client, other].map((each) => slicesOf(t, each, { hits: 10 }));
  let passed = 0;
  const checks = async (slices) => {
    for (let i = 0; i < 20; i += 1) if ((await slices.check("shop", crowd)).allowed) passed += 1;
  };

  await Promise.all(Array.from({ length: 8 }, (_, i) => checks(both[i % 2])));
  await Promise.all(both.map((slices) => slices.close()));

  assert.ok(passed <= 50, `${passed} passed`);
  assert.equal(await remaining(client, crowd), 50 - passed);
  while ((await client.check("shop", crowd)).allowed) passed += 1;
  assert.equal(passed, 50);
});

test("slice_that_lasts_too_short_is_given_back", async (t) => {
  const { client, stats } = await connect(t);
  const slices = slicesOf(t, client, { hits: 100 });
  const fast = [{ entries: [["fast", "any"]] }];
  const begin = performance.now();
  while (performance.now() < begin + 300) assert.ok((await slices.check("shop", fast)).allowed);

  assert.equal(stats.prepaid, 0);
});

test("check_with_more_hits_than_a_slice_reserves_none", async (t) => {
  const { client, stats } = await connect(t);
  const slices = slicesOf(t, client, { hits: 10 });
  for (let i = 0; i < 5; i += 1) {
    const { allowed, source } = await slices.check("shop", RED, 20);
    assert.deepEqual([allowed, source], [true, "server"]);
  }
  await slices.close();

  assert.deepEqual([await remaining(client, RED), stats.prepaid], [900, 0]);
});

test("check_with_request_id_asks_the_server", async (t) => {
  const { client } = await connect(t);
  const slices = slicesOf(t, client, { hits: 50 });
  await checkUntilPrepaid(slices, RED);

  const { allowed, source } = await slices.check("shop", RED, 1, { requestId: "order-1" });

  assert.deepEqual([allowed, source], [true, "server"]);
});

test("settlement_without_server_counts_lost_hits", async (t) => {
  const { server, client, stats } = await connect(t, { timeoutMs: 2_000 });
  const slices = slicesOf(t, client, { hits: 50 });
  await checkUntilPrepaid(slices, RED);
  await server.stop();
  await slices.close();

  assert.equal(stats.lostHits, 49);
});

test("slice_with_little_left_is_renewed", async (t) => {
  const { client, stats } = await connect(t);
  const slices = slicesOf(t, client, { hits: 20 });
  let passed = await checkUntilPrepaid(slices, RED);
  const { batches } = stats;
  // Each time 5 hits are left then, a quarter of the slice.
  for (const spent of [14, 15, 15]) {
    for (let i = 0; i < spent; i += 1) assert.ok((await slices.check("shop", RED)).allowed);
    passed += spent;
    const renewed = async () => (await remaining(client, RED)) === 1_000 - passed - 20;
    await eventually("a new slice is held, and the one before is settled", renewed);
  }
  await slices.close();

  assert.equal(stats.batches, batches);
  assert.equal(await remaining(client, RED), 1_000 - passed);
});

test("slice_is_renewed_before_its_time_is_over", async (t) => {
  const { client } = await connect(t);
  const slices = slicesOf(t, client, { hits: 20, ttlMs: 2_000 });
  const passed = await checkUntilPrepaid(slices, RED);
  const left = (hits) => async () => (await remaining(client, RED)) === hits;

  await eventually("another slice is held", left(1_000 - passed - 20));
  await eventually("it is given back, because it is not used", left(1_000 - passed));
});

test("slice_ends_with_the_window_of_its_limit", async (t) => {
  const { server, client } = await connect(t);
  const second = [{ entries: [["second", "any"]] }];
  const slices = slicesOf(t, client, { hits: 500_000, ttlMs: 60 * MINUTE });
  await checkUntilPrepaid(slices, second);
  await server.stop();

  const ended = async () => (await slices.check("shop", second)).source === "default";
  await eventually("the slice cannot be spent any more", ended);
});

test("slice_without_server_is_spent_locally", async (t) => {
  const { server, client } = await connect(t);
  const slices = slicesOf(t, client, { hits: 20 });
  await checkUntilPrepaid(slices, RED);
  await server.stop();

  const { allowed, source, limits } = await slices.check("shop", RED);

  assert.deepEqual([allowed, source, limits[0].requestsPerUnit], [true, "prepaid", 1_000]);
});

test("slice_larger_than_the_limit_is_left_out", async (t) => {
  const { client, stats } = await connect(t);
  const crowd = [{ entries: [["crowd", "all"]] }];
  const slices = slicesOf(t, client, { hits: 51 });
  let passed = 0;
  while ((await slices.check("shop", crowd)).allowed) passed += 1;

  assert.deepEqual([passed, stats.prepaid], [50, 0]);
});

test("keys_beyond_their_maximum_ask_the_server", async (t) => {
  const { client } = await connect(t);
  const slices = slicesOf(t, client, { hits: 20, maxKeys: 1 });
  await checkUntilPrepaid(slices, RED);

  for (let i = 0; i < 20; i += 1) assert.equal((await slices.check("shop", BLUE)).source, "server");

  assert.equal(await remaining(client, BLUE), 980);
});

test("requests_that_no_slice_can_serve_ask_the_server", async (t) => {
  const { client } = await connect(t);
  const slices = slicesOf(t, client, { hits: 20 });
  const passed = await checkUntilPrepaid(slices, RED);

  const sources = [await slices.check("shop", RED, 21), await slices.check("shop", [{ ...RED[0], hits: 2 }])];

  assert.deepEqual(sources.map(({ source }) => source), ["server", "server"]);
  assert.equal((await slices.check("shop", RED)).source, "prepaid", "the slice is kept");
  await slices.close();
  assert.equal(await remaining(client, RED), 1_000 - passed - 21 - 2 - 1);
});

test("descriptors_that_the_caller_changes_do_not_change_the_slice", async (t) => {
  const { client } = await connect(t);
  const slices = slicesOf(t, client, { hits: 20 });
  const changing = [{ entries: [["tokens", "red"]] }];
  const passed = await checkUntilPrepaid(slices, changing);

  changing[0].entries[0][1] = "blue";
  await slices.close();

  assert.equal(await remaining(client, RED), 1_000 - passed);
  assert.equal(await remaining(client, BLUE), 1_000);
});

test("invalid_request_or_size_of_slices_is_an_error", async (t) => {
  const client = clientOf(t, "127.0.0.1:1");
  const slices = slicesOf(t, client, {});
  const invalid = { name: "InvalidRequestError" };

  for (const [descriptors, hits] of [[user("\ud800")], [RED, 0], [[null]], ["tokens"]])
    await assert.rejects(slices.check("shop", descriptors, hits), invalid);
  for (const [name, value] of [["hits", 0], ["ttlMs", 0.5], ["ttlMs", 86_400_001], ["maxKeys", -1]])
    assert.throws(() => new PrepaidSlices(client, { [name]: value }), { name: "RangeError", message: RegExp(name) });
});
