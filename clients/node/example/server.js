// An Express server that admits as many requests of each user as the rules allow.
//
//   node example/server.js --tollgate 127.0.0.1:8081 --listen 127.0.0.1:8000

import { once } from "node:events";
import { createServer } from "node:http";
import { parseArgs } from "node:util";

import express from "express";
import { Client } from "tollgate-ratelimit-client";
import { rateLimit } from "tollgate-ratelimit-client/express";

const { values } = parseArgs({
  options: {
    tollgate: { type: "string", default: "127.0.0.1:8081" },
    listen: { type: "string", default: "127.0.0.1:8000" },
  },
});
const [host, port] = values.listen.split(":");

const client = new Client(values.tollgate, { timeoutMs: 100, onNoAnswer: "allow" });
// Limits each user; requests without a user share one limit. A real service takes the user from a verified token: a
// client that chooses its name chooses its budget.
const describe = (request) => ({
  domain: "edge",
  descriptors: [{ entries: [["user", request.get("user") ?? "anonymous"]] }],
});

const app = express();
app.use(rateLimit(client, describe));
app.get("/hello", (_request, response) => response.send("hello\n"));

const server = createServer(app).listen(Number(port), host);
await once(server, "listening");
console.log(`listening on http://${host}:${server.address().port}`);
