import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { test } from "node:test";

import express from "express";
import Fastify from "fastify";
import { PrepaidSlices, Stats } from "tollgate";
import { rateLimit as expressRateLimit } from "tollgate/express";
import { rateLimit as fastifyRateLimit } from "tollgate/fastify";
import { clientOf, closedPort, connectedClient, eventually, PATIENT, startTollgate } from "./processes.js";

// `/KEY/VALUE` asks for this entry, `/health` for nothing, `/broken` for no descriptor.
function questionOf({ url }) {
  if (url === "/health") return undefined;
  if (url === "/broken") return { domain: "shop", descriptors: [] };
  const [, key, value] = url.split("/");
  return { domain: "shop", descriptors: [{ entries: [[key, value]] }] };
}

async function serveExpress(test, client) {
  const app = express();
  app.use(expressRateLimit(client, questionOf));
  app.get("/{*path}", (_request, response) => response.send("passed"));
  // With an error handler of its own, which does not write to the log of the test.
  app.use((error, _request, response, _next) => response.status(500).send(error.name));
  const server = createServer(app).listen(0, "127.0.0.1");
  await once(server, "listening");
  test.after(() => server.close().closeAllConnections());
  return `http://127.0.0.1:${server.address().port}`;
}

async function serveFastify(test, client) {
  const app = Fastify({ forceCloseConnections: true });
  await app.register(fastifyRateLimit, { client, questionOf });
  app.get("/*", async () => "passed");
  app.setErrorHandler((error, _request, reply) => reply.code(500).send(error.name));
  test.after(() => app.close());
  return app.listen({ host: "127.0.0.1", port: 0 });
}

const NAMES = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset", "retry-after"];

async function get(server, path) {
  const response = await fetch(server + path);
  const headers = NAMES.map((name) => response.headers.get(name));
  return { status: response.status, body: await response.text(), headers };
}

for (const [name, serve] of [
  ["express", serveExpress],
  ["fastify", serveFastify],
]) {
  test(`${name}_requests_are_prepaid_by_slices`, async (t) => {
    const { address } = await startTollgate(t);
    const stats = new Stats();
    const slices = new PrepaidSlices(await connectedClient(t, address, { ...PATIENT, metrics: stats }), { hits: 50 });
    t.after(() => slices.close());
    const server = await serve(t, slices);

    await eventually("a request is prepaid", async () => {
      assert.equal((await get(server, "/tokens/a")).status, 200);
      return stats.prepaid > 0;
    });
  });

  test(`${name}_request_over_its_limit_gets_429_with_headers`, async (t) => {
    const { address } = await startTollgate(t);
    const server = await serve(t, await connectedClient(t, address, PATIENT));

    for (const left of ["2", "1", "0"]) {
      const { status, body, headers } = await get(server, "/bucket/a");
      const [limit, remaining, reset, retry] = headers;
      assert.deepEqual([status, body, limit, remaining, retry], [200, "passed", "3", left, null]);
      assert.ok(Number(reset) > 0, reset);
    }
    // The second refusal comes from the deny cache.
    for (let i = 0; i < 2; i += 1) {
      const { status, body, headers } = await get(server, "/bucket/a");
      const [limit, remaining, reset, retry] = headers;
      assert.deepEqual([status, body, limit, remaining], [429, "", "3", "0"]);
      // One token comes back in 20 min. The test takes less than a minute of them.
      assert.ok(Number(retry) > 1_140 && Number(retry) <= 1_200, retry);
      assert.equal(reset, retry);
    }
    assert.equal((await get(server, "/bucket/b")).status, 200);
  });

  test(`${name}_request_without_question_or_limit_has_no_headers`, async (t) => {
    const { address } = await startTollgate(t);
    const server = await serve(t, await connectedClient(t, address, PATIENT));

    for (const path of ["/health", "/free/x"]) {
      const { status, headers } = await get(server, path);
      assert.deepEqual([status, headers], [200, [null, null, null, null]]);
    }
  });

  test(`${name}_request_waits_for_its_turn`, async (t) => {
    const { address } = await startTollgate(t);
    const server = await serve(t, await connectedClient(t, address, PATIENT));

    const begin = performance.now();
    const all = await Promise.all([get(server, "/turn/a"), get(server, "/turn/a"), get(server, "/turn/a")]);

    assert.deepEqual(all.map(({ status }) => status), [200, 200, 200]);
    assert.ok(performance.now() - begin >= 100, "one turn every 50 ms");
  });

  test(`${name}_invalid_question_goes_to_error_handler`, async (t) => {
    const { address } = await startTollgate(t);
    const server = await serve(t, await connectedClient(t, address, PATIENT));

    const { status, body } = await get(server, "/broken");
    assert.deepEqual([status, body], [500, "InvalidRequestError"]);
  });

  test(`${name}_request_without_answer_gets_default_decision`, async (t) => {
    const port = await closedPort();
    for (const [onNoAnswer, expected] of [
      ["allow", 200],
      ["deny", 429],
    ]) {
      const server = await serve(t, clientOf(t, port, { ...PATIENT, onNoAnswer }));
      const { status, headers } = await get(server, "/user/ada");
      assert.deepEqual([status, headers], [expected, [null, null, null, null]]);
    }
  });
}
