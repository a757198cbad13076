// Streams the answer of a fake model, and limits its tokens for each user.

import { createServer } from "node:http";
import { setTimeout as wait } from "node:timers/promises";
import { parseArgs } from "node:util";

import { Client, refusal } from "tollgate";

const { values } = parseArgs({
  options: {
    limiter: { type: "string", default: "127.0.0.1:8081" },
    "timeout-ms": { type: "string", default: "1000" },
    port: { type: "string", default: "8000" },
  },
});
// Tokens cost money.
const client = new Client(values.limiter, { timeoutMs: Number(values["timeout-ms"]), onNoAnswer: "deny" });

async function* model(maxTokens) {
  for (let token = 0; token < maxTokens; token++) {
    await wait(5);
    yield `token${token} `;
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

// Waits until the caller has taken what was written, or has gone away.
function drained(response) {
  return new Promise((resolve) => {
    const end = () => {
      response.off("drain", end).off("close", end);
      resolve();
    };
    response.on("drain", end).on("close", end);
  });
}

async function chat(request, response) {
  const maxTokens = Number(new URL(request.url, "http://localhost").searchParams.get("max_tokens") ?? 100);
  const descriptors = [{ entries: [["tokens", request.headers.user ?? ""]] }];
  // Stays charged if this program ends before the settlement.
  const terms = { ttlMs: 300_000, onExpiry: "charge" };
  const reservation = await client.reserve({ domain: "shop", descriptors, hits: maxTokens }, terms);
  if (!reservation.decision.allowed) {
    // Holds tokens only if the answer was lost, and the default has decided.
    await repeated(() => client.cancel(reservation));
    const { status, headers } = refusal(reservation.decision);
    return response.writeHead(status, headers).end();
  }
  let sent = 0;
  try {
    for await (const token of model(maxTokens)) {
      // The caller has gone away.
      if (response.destroyed) break;
      sent++;
      // A slow caller is not sent more than it takes.
      if (!response.write(token) && !response.destroyed) await drained(response);
    }
  } finally {
    await repeated(() => client.settle(reservation, sent));
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
