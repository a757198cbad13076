import assert from "node:assert/strict";
import { test } from "node:test";

import { clientOf, closedPort, eventually, PATIENT, startTollgate, user } from "./processes.js";

const tokens = (name) => ({ entries: [["tokens", name]] });
// A call of a model is one request, and as many tokens as it turns out.
const CALL = [{ ...user("ada")[0], hits: 1 }, tokens("ada")];
const remaining = async (client, descriptor) => {
  const { noAnswer, limits } = await client.peek("shop", [descriptor]);
  assert.equal(noAnswer, undefined);
  return limits[0].remaining;
};
const connect = async (t) =>
  clientOf(t, (await startTollgate(t)).address, { ...PATIENT, denyCacheMaxMs: 3_600_000 });

test("settlement_of_less_than_reserved_gives_the_rest_back", async (t) => {
  const client = await connect(t);
  const reservation = await client.reserve("shop", CALL, 800);
  assert.equal(reservation.decision.allowed, true);
  assert.equal(await remaining(client, tokens("ada")), 200);

  const settled = await client.settle(reservation, 300);

  assert.equal(settled.unknown, false);
  const { resetAfterMs, ...limit } = settled.limits[1];
  const expected = { descriptor: 1, rule: "of-tokens", outcome: "open", reserved: 800, notCharged: 0, remaining: 700 };
  assert.deepEqual(limit, expected);
  assert.ok(resetAfterMs > 0, resetAfterMs);
  assert.equal(await remaining(client, tokens("ada")), 700);
  assert.equal(await remaining(client, user("ada")[0]), 2);
  assert.deepEqual(await client.settle(reservation, 999), settled, "a repeated settlement answers as the first one");
});

test("settlement_of_more_than_the_limit_says_what_is_not_charged", async (t) => {
  const client = await connect(t);

  const settled = await client.settle(await client.reserve("shop", [tokens("ada")], 800), 1_200);

  assert.equal(settled.limits[0].notCharged, 200);
  assert.equal(await remaining(client, tokens("ada")), 0);
});

test("refused_reservation_of_one_limit_holds_nothing", async (t) => {
  const client = await connect(t);

  const refused = await client.reserve("shop", CALL, 1_001);

  assert.deepEqual([refused.decision.allowed, refused.id], [false, ""]);
  assert.deepEqual(await client.settle(refused, 7), { limits: [], unknown: false });
  assert.equal(await remaining(client, tokens("ada")), 1_000);
  assert.equal(await remaining(client, user("ada")[0]), 3);
});

test("cancellation_of_a_reservation_gives_all_back", async (t) => {
  const client = await connect(t);

  const canceled = await client.cancel(await client.reserve("shop", CALL, 800));

  assert.equal(canceled.limits[1].reserved, 800);
  assert.equal(await remaining(client, tokens("ada")), 1_000);
  assert.equal(await remaining(client, user("ada")[0]), 3);
});

test("expired_reservation_is_released_or_charged_by_its_terms", async (t) => {
  const client = await connect(t);
  const charged = await client.reserve("shop", [tokens("bob")], 800, { ttlMs: 50, onExpiry: "charge" });
  // The later one, so that both have expired when it has.
  const released = await client.reserve("shop", [tokens("ada")], 800, { ttlMs: 50 });

  await eventually("tokens are given back", async () => (await remaining(client, tokens("ada"))) === 1_000);

  assert.equal(await remaining(client, tokens("bob")), 200);
  assert.equal((await client.settle(released, 1)).limits[0].outcome, "released");
  assert.equal((await client.settle(charged, 1)).limits[0].outcome, "charged");
});

test("settlement_after_local_denials_lets_requests_pass", async (t) => {
  const client = await connect(t);
  const reservation = await client.reserve("shop", [tokens("ada")], 1_000);
  await client.check("shop", [tokens("ada")]);
  assert.equal((await client.check("shop", [tokens("ada")])).source, "deny_cache");

  await client.settle(reservation, 0);

  assert.equal((await client.check("shop", [tokens("ada")])).allowed, true);
});

test("invalid_reservation_is_an_error", async (t) => {
  const client = await connect(t);
  const invalid = { name: "InvalidRequestError" };

  for (const terms of [{ ttlMs: 0 }, { ttlMs: NaN }, { ttlMs: 86_400_001 }, { onExpiry: "shrug" }])
    await assert.rejects(client.reserve("shop", [tokens("ada")], 1, terms), invalid);
  await assert.rejects(client.reserve("shop", []), invalid);
  await assert.rejects(client.settle(await client.reserve("shop", [tokens("ada")]), -1), invalid);
});

test("reservation_without_server_gets_the_default", async (t) => {
  const port = await closedPort();
  for (const onNoAnswer of ["allow", "deny"]) {
    const client = clientOf(t, port, { ...PATIENT, onNoAnswer });

    const reservation = await client.reserve("shop", [tokens("ada")]);

    assert.equal(reservation.decision.allowed, onNoAnswer === "allow");
    assert.equal(reservation.decision.source, "default");
    assert.notEqual(reservation.id, "", "the server may hold it");
    const noAnswer = { name: "NoAnswerError", code: "UNAVAILABLE" };
    await assert.rejects(client.settle(reservation, 1), noAnswer);
    await assert.rejects(client.cancel(reservation), noAnswer);
    client.close();
    await assert.rejects(client.settle(reservation, 1), { ...noAnswer, code: "CANCELLED" });
  }
});
