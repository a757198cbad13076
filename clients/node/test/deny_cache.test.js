import assert from "node:assert/strict";
import { test } from "node:test";

import { Stats } from "tollgate";
import { DenyCache } from "../dist/deny_cache.js";
import { connectedClient, eventually, PATIENT, startTollgate, user } from "./processes.js";

const LONG = { ...PATIENT, denyCacheMaxMs: 3_600_000 };

// Checks until the server has refused the key.
async function exhaust(client, descriptors, hits) {
  for (let i = 0; i < 4; i += 1) {
    const { allowed, source } = await client.check("shop", descriptors, hits);
    if (!allowed) return assert.equal(source, "server");
  }
  assert.fail("not refused");
}

test("refused_key_is_refused_without_the_server", async (t) => {
  const server = await startTollgate(t);
  const stats = new Stats();
  const client = await connectedClient(t, server.address, { ...LONG, metrics: stats });
  await exhaust(client, user("ada"));
  await server.stop();

  const { batches } = stats;
  const refused = await client.check("shop", user("ada"));

  assert.deepEqual([refused.allowed, refused.source], [false, "deny_cache"]);
  assert.ok(refused.retryAfterMs > LONG.denyCacheMaxMs, "the wait is that of the server");
  assert.equal(refused.limits[0].requestsPerUnit, 3);
  assert.deepEqual([stats.batches, stats.deniedLocally], [batches, 1]);
});

test("refused_key_is_asked_again_after_the_longest_time", async (t) => {
  const { address } = await startTollgate(t);
  const client = await connectedClient(t, address, { ...PATIENT, denyCacheMaxMs: 50 });
  await exhaust(client, user("ada"));

  await eventually("the server is asked", async () => (await client.check("shop", user("ada"))).source === "server");
});

test("refused_key_passes_after_its_retry_after", async (t) => {
  const { address } = await startTollgate(t);
  const client = await connectedClient(t, address, LONG);
  const second = [{ entries: [["user", "ada"]], limit: { requestsPerUnit: 1, unit: "second" } }];
  await exhaust(client, second);

  await eventually("the next second", async () => (await client.check("shop", second)).allowed);
});

test("refund_removes_key_from_deny_cache", async (t) => {
  const { address } = await startTollgate(t);
  const client = await connectedClient(t, address, LONG);
  await exhaust(client, user("ada"));
  assert.equal((await client.check("shop", user("ada"))).source, "deny_cache");

  await client.refund("shop", user("ada"));

  const { allowed, source } = await client.check("shop", user("ada"));
  assert.deepEqual([allowed, source], [true, "server"]);
});

const REQUEST = { domain: "shop", descriptors: user("ada"), hits: 1, size: 1 };
const REFUSED = { allowed: false, source: "server", retryAfterMs: 60_000, limits: [] };

test("refusal_of_check_that_began_before_refund_is_not_cached", () => {
  const cache = new DenyCache(10, 60_000);
  const ends = [cache.begin(REQUEST), cache.begin(REQUEST)];
  cache.refund(REQUEST, 5);
  cache.insert(REQUEST, REFUSED, 4);
  assert.equal(cache.lookup(REQUEST, 6), undefined);
  cache.insert(REQUEST, REFUSED, 5);
  assert.equal(cache.lookup(REQUEST, 6)?.source, "deny_cache");
  for (const end of ends) end();
});

test("refund_of_other_keys_keeps_refusals", () => {
  const cache = new DenyCache(1, 60_000);
  cache.insert(REQUEST, REFUSED, 0);
  for (let i = 0; i < 10; i += 1) cache.refund({ ...REQUEST, descriptors: user(`bob-${i}`) }, 1);
  assert.equal(cache.lookup(REQUEST, 2)?.source, "deny_cache");
});

test("check_with_request_id_counts_once_and_passes_over_the_deny_cache", async (t) => {
  const { address } = await startTollgate(t);
  const client = await connectedClient(t, address, LONG);
  const check = () => client.check("shop", user("ada"), 3, { requestId: "order-1" });
  for (let i = 0; i < 3; i += 1) assert.equal((await check()).allowed, true);
  assert.equal((await client.check("shop", user("ada"))).allowed, false);
  assert.equal((await client.check("shop", user("ada"))).source, "deny_cache");

  const { allowed, source } = await check();

  assert.deepEqual([allowed, source], [true, "server"]);
});

test("refusal_without_retry_after_is_not_cached", async (t) => {
  const { address } = await startTollgate(t);
  const client = await connectedClient(t, address, LONG);

  for (let i = 0; i < 2; i += 1) {
    const { allowed, source, retryAfterMs } = await client.check("shop", [{ entries: [["bucket", "a"]] }], 4);
    assert.deepEqual([allowed, source, retryAfterMs], [false, "server", undefined]);
  }
});

test("refusal_of_many_hits_does_not_refuse_fewer", async (t) => {
  const { address } = await startTollgate(t);
  const client = await connectedClient(t, address, LONG);
  await exhaust(client, user("ada"), 2);

  assert.equal((await client.check("shop", user("ada"), 3)).source, "deny_cache");
  const fewer = await client.check("shop", user("ada"), 1);
  assert.deepEqual([fewer.allowed, fewer.source], [true, "server"]);
});

test("refusal_under_one_limit_does_not_refuse_under_another", async (t) => {
  const { address } = await startTollgate(t);
  const client = await connectedClient(t, address, LONG);
  const under = (requestsPerUnit) => [{ entries: [["user", "ada"]], limit: { requestsPerUnit, unit: "year" } }];
  await exhaust(client, under(1));

  assert.equal((await client.check("shop", under(1))).source, "deny_cache");
  const { allowed, source } = await client.check("shop", under(9));
  assert.deepEqual([allowed, source], [true, "server"]);
});

test("full_deny_cache_drops_oldest_key", async (t) => {
  const { address } = await startTollgate(t);
  const client = await connectedClient(t, address, { ...LONG, denyCacheKeys: 2 });
  for (const name of ["a", "b", "c"]) await exhaust(client, user(name));

  const sources = [];
  for (const name of ["b", "c", "a"]) sources.push((await client.check("shop", user(name))).source);
  assert.deepEqual(sources, ["deny_cache", "deny_cache", "server"]);
});

test("deny_cache_that_is_off_asks_the_server", async (t) => {
  const { address } = await startTollgate(t);
  const client = await connectedClient(t, address, { ...LONG, denyCacheKeys: 0 });
  await exhaust(client, user("ada"));

  assert.equal((await client.check("shop", user("ada"))).source, "server");
});
