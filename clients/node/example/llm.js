// Keeps four limits of each user of a language model: GET /chat, which streams the answer. A reservation holds one
// request, the most tokens that the answer may have, and a place in flight. Its settlement frees the place, and charges
// the tokens that were sent.

import { createServer } from "node:http";
import { setTimeout as wait } from "node:timers/promises";
import { parseArgs } from "node:util";

import { Client, refusal } from "tollgate-ratelimit-client";

const { values } = parseArgs({
  options: {
    tollgate: { type: "string", default: "127.0.0.1:8081" },
    "timeout-ms": { type: "string", default: "1000" },
    port: { type: "string", default: "8000" },
    // The time between two tokens.
    "pace-ms": { type: "string", default: "50" },
  },
});
// Tokens cost money.
const client = new Client(values.tollgate, { timeoutMs: Number(values["timeout-ms"]), onNoAnswer: "deny" });
// Longer than any answer takes. If this program ends before, the place is free again, and the rest stays charged.
const terms = { ttlMs: 300_000, onExpiry: "charge" };
// The index of the descriptor of calls in flight.
const IN_FLIGHT = 3;

// Stands for a language model: the tokens of an answer, as they come.
async function* model(maxTokens) {
  const sentence = ["Limits", " are", " kept", " exactly", ".", "\n"];
  for (let token = 0; token < Math.min(18, maxTokens); token++) {
    if (token > 0) await wait(Number(values["pace-ms"]));
    yield sentence[token % 6];
  }
}

// A repeated call answers as the first one.
async function repeated(end) {
  for (let attempt = 1; attempt <= 3; attempt++) {
    try {
      return await end();
    } catch (error) {
      console.error(`end of a reservation, attempt ${attempt}: ${error.message}`);
    }
  }
}

async function chat(request, response) {
  const maxTokens = Number(new URL(request.url, "http://localhost").searchParams.get("max_tokens"));
  const user = request.headers.user ?? "";
  const descriptors = [
    { entries: [["requests", user]], hits: 1 },
    { entries: [["tokens", user]] },
    { entries: [["tokens_of_month", user]] },
    { entries: [["in_flight", user]], hits: 1, onExpiry: "release" },
  ];
  const reservation = await client.reserve({ domain: "models", descriptors, hits: maxTokens }, terms);
  if (!reservation.decision.allowed) {
    // Holds hits only if the answer was lost, and the default has decided.
    await repeated(() => client.cancel(reservation));
    const { status, headers, body } = refusal(reservation.decision, request.headers.accept);
    return response.writeHead(status, headers).end(body);
  }
  let sent = 0;
  try {
    for await (const token of model(maxTokens)) {
      // The caller has gone away.
      if (response.destroyed) break;
      response.write(token);
      sent++;
    }
  } finally {
    // One request as reserved, the tokens that were sent, and no place.
    await repeated(() => client.settle(reservation, sent, { [IN_FLIGHT]: 0 }));
    response.end();
  }
}

const server = createServer((request, response) => {
  chat(request, response).catch((error) => {
    if (response.headersSent) response.destroy();
    else response.writeHead(error.name === "InvalidRequestError" ? 400 : 500).end(error.message);
  });
});
server.listen(Number(values.port), "127.0.0.1", () => console.log(`listening on 127.0.0.1:${server.address().port}`));
