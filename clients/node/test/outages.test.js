import assert from "node:assert/strict";
import { test } from "node:test";

import { Stats } from "tollgate";
import {
  clientOf,
  closedPort,
  connectedClient,
  eventually,
  PATIENT,
  silentServer,
  startTollgate,
  user,
} from "./processes.js";

test("without_server_the_option_decides", async (t) => {
  const port = await closedPort();
  for (const [onNoAnswer, expected] of [
    [undefined, true],
    ["allow", true],
    ["deny", false],
  ]) {
    const client = clientOf(t, port, { ...PATIENT, onNoAnswer });
    for (const operation of ["check", "peek"]) {
      const { allowed, source, noAnswer, limits } = await client[operation]("shop", user("ada"));
      assert.deepEqual([allowed, source, noAnswer.code, limits], [expected, "default", "UNAVAILABLE", []]);
    }
  }
});

test("refund_without_server_is_an_error", async (t) => {
  const client = clientOf(t, await closedPort(), PATIENT);

  await assert.rejects(client.refund("shop", user("ada")), { name: "NoAnswerError", code: "UNAVAILABLE" });
});

test("silent_server_is_waited_for_until_the_deadline", async (t) => {
  const { address } = await silentServer(t);
  for (const [timeoutMs, onNoAnswer] of [
    [100, "allow"],
    [300, "deny"],
  ]) {
    const stats = new Stats();
    const client = clientOf(t, address, { timeoutMs, onNoAnswer, metrics: stats });
    const begin = performance.now();
    const { allowed, source, noAnswer } = await client.check("shop", user("ada"));
    const waited = performance.now() - begin;

    assert.deepEqual([allowed, source, noAnswer.code], [onNoAnswer === "allow", "default", "DEADLINE_EXCEEDED"]);
    // Timers of Node have a granularity of a millisecond.
    assert.ok(waited >= timeoutMs - 2 && waited < 10_000, String(waited));
    assert.equal(stats.defaults.get("DEADLINE_EXCEEDED"), 1);
  }
});

test("new_client_connects_before_its_first_check", async (t) => {
  const { address, sockets } = await silentServer(t);
  clientOf(t, address);

  await eventually("a connection", () => sockets.size === 1);
});

test("frozen_server_delays_no_check_beyond_its_deadline", async (t) => {
  const server = await startTollgate(t);
  const stats = new Stats();
  const client = await connectedClient(t, server.address, { timeoutMs: 200, maxCalls: 1, metrics: stats });
  server.pause();

  const begin = performance.now();
  const decisions = await Promise.all(Array.from({ length: 50 }, (_, i) => client.check("shop", user(`user ${i}`))));
  assert.ok(performance.now() - begin < 10_000);
  assert.ok(decisions.every(({ source, noAnswer }) => source === "default" && noAnswer.code === "DEADLINE_EXCEEDED"));

  server.resume();
  await eventually("the server answers", async () => (await client.check("shop", user("bob"))).source === "server");
});

test("full_queue_gives_default_decision_at_once", async (t) => {
  const server = await startTollgate(t);
  const stats = new Stats();
  const options = { ...PATIENT, onNoAnswer: "deny", maxCalls: 1, maxQueue: 2, metrics: stats };
  const client = await connectedClient(t, server.address, options);
  server.pause();

  const waiting = Array.from({ length: 3 }, () => client.check("shop", user("ada")));
  const { allowed, source, noAnswer } = await client.check("shop", user("ada"));
  assert.deepEqual([allowed, source, noAnswer.code], [false, "default", "RESOURCE_EXHAUSTED"]);
  assert.equal(stats.defaults.get("RESOURCE_EXHAUSTED"), 1);

  server.resume();
  for (const answered of await Promise.all(waiting))
    assert.deepEqual([answered.allowed, answered.source], [true, "server"]);
});

test("client_reconnects_to_restarted_server", async (t) => {
  const first = await startTollgate(t);
  const client = await connectedClient(t, first.address, PATIENT);
  await first.stop();
  await eventually("the server is gone", async () => (await client.check("shop", user("ada"))).source === "default");

  await startTollgate(t, { listen: first.address });

  const fresh = await eventually("the server is back", async () => {
    const decision = await client.check("shop", user("bob"));
    return decision.source === "server" && decision;
  });
  assert.equal(fresh.allowed, true);
});

test("calls_are_balanced_over_all_addresses", async (t) => {
  const servers = await Promise.all([startTollgate(t), startTollgate(t)]);
  const client = clientOf(t, `ipv4:${servers.map(({ address }) => address).join(",")}`, PATIENT);
  const one = await Promise.all(servers.map(({ address }) => connectedClient(t, address, PATIENT)));
  const crowd = [{ entries: [["crowd", "all"]] }];
  const charged = (each) => each.peek("shop", crowd).then(({ limits: [{ remaining }] }) => remaining < 50);

  await eventually("both servers are asked", async () => {
    await client.check("shop", crowd);
    return (await Promise.all(one.map(charged))).every(Boolean);
  });
  await servers[0].stop();
  await eventually("the other one answers", async () => (await client.check("shop", crowd)).source === "server");
});

test("closed_client_gives_default_decision", async (t) => {
  const { address } = await silentServer(t);
  const client = clientOf(t, address, { timeoutMs: 1_000, maxCalls: 1 });
  const underWay = client.check("shop", user("ada"));
  const waiting = client.check("shop", user("ada"));
  client.close();

  for (const decision of await Promise.all([waiting, client.check("shop", user("ada"))]))
    assert.deepEqual([decision.source, decision.noAnswer.code], ["default", "CANCELLED"]);
  assert.equal((await underWay).source, "default");
});
