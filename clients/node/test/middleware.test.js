import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { test } from "node:test";

import express from "express";
import Fastify from "fastify";
import { rateLimit as expressRateLimit } from "tollgate-ratelimit-client/express";
import { rateLimit as fastifyRateLimit } from "tollgate-ratelimit-client/fastify";
import { clientOf } from "./processes.js";
import { optionsOf, requestOf, startScripted, vectorsOf } from "./scripted.js";

async function serveExpress(test, checker, describe) {
  const app = express();
  app.use(expressRateLimit(checker, describe));
  app.get("/", (_request, response) => response.send("passed"));
  // With an error handler of its own, which does not write to the log of the test.
  app.use((error, _request, response, _next) => response.status(500).send(error.name));
  const server = createServer(app).listen(0, "127.0.0.1");
  await once(server, "listening");
  test.after(() => server.close().closeAllConnections());
  return `http://127.0.0.1:${server.address().port}`;
}

async function serveFastify(test, checker, describe) {
  const app = Fastify({ forceCloseConnections: true });
  await app.register(fastifyRateLimit, { checker, describe });
  app.get("/", async () => "passed");
  app.setErrorHandler((error, _request, reply) => reply.code(500).send(error.name));
  test.after(() => app.close());
  return app.listen({ host: "127.0.0.1", port: 0 });
}

for (const [framework, serve] of [
  ["express", serveExpress],
  ["fastify", serveFastify],
])
  for (const vector of vectorsOf("middleware"))
    test(`${framework}_${vector.name}`, async (t) => {
      const { options, request, accept, answer, passes, waits_ms: waits = 0, limit, http } = vector;
      const scripted = await startScripted(t);
      const client = clientOf(t, scripted.address, optionsOf(options));
      if (answer) scripted.next().then((call) => call.reply({ answers: [answer] }));
      const url = await serve(t, client, () => (request === null ? undefined : requestOf(request)));
      const begin = performance.now();

      const response = await fetch(url, accept && { headers: { accept } });

      const body = await response.text();
      const found = [...response.headers].filter(([each]) => each.startsWith("ratelimit-"));
      assert.deepEqual(Object.fromEntries(found), limit);
      assert.ok(performance.now() - begin >= waits);
      const wanted = passes
        ? [200, "passed", null]
        : [http.status, http.body ?? "InvalidRequestError", http.retry_after];
      assert.deepEqual([response.status, body, response.headers.get("retry-after")], wanted);
      const [type] = (response.headers.get("content-type") ?? "").split(";");
      if (http?.body) assert.equal(type, http.type ?? "text/plain");
    });
