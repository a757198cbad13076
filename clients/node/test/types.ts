// Compiled and not run: what a program in TypeScript may write.

import express from "express";
import Fastify from "fastify";
import {
  Client,
  type Decision,
  InvalidRequestError,
  type Metrics,
  PrepaidSlices,
  type Refusal,
  refusal,
  type Settlement,
  tightest,
} from "tollgate-ratelimit-client";
import { rateLimit as expressRateLimit } from "tollgate-ratelimit-client/express";
import { rateLimit as fastifyRateLimit } from "tollgate-ratelimit-client/fastify";

const metrics: Metrics = { checked: (outcome, latencyMs) => console.log(outcome, latencyMs), sent: () => {} };
const client = new Client("127.0.0.1:8081", { timeoutMs: 50, onNoAnswer: "deny", metrics, tls: {} });
const ada = { domain: "shop", descriptors: [{ entries: [["user", "ada"]] }] } as const;

async function ask(): Promise<number | undefined> {
  try {
    const decision: Decision = await client.check({ ...ada, hits: 1, requestId: "order-1" });
    return decision.allowed ? tightest(decision)?.remaining : decision.retryAfterMs;
  } catch (error) {
    if (error instanceof InvalidRequestError) return undefined;
    throw error;
  }
}
await ask();

express().use(
  expressRateLimit(new PrepaidSlices(client), (request: express.Request) => ({
    domain: "shop",
    descriptors: [{ entries: [["path", request.path]] }],
  })),
);
await Fastify().register(fastifyRateLimit, {
  checker: client,
  describe: (request) =>
    request.url === "/health" ? undefined : { domain: "shop", descriptors: [{ entries: [["ip", request.ip]] }] },
});

const reservation = await client.reserve(ada, { ttlMs: 500, onExpiry: "charge" });
const settlement: Settlement = reservation.decision.allowed
  ? await client.settle(reservation, 3)
  : await client.cancel(reservation);
if (settlement.limits[0]?.outcome === "released") console.log(settlement.limits[0].notCharged);

const { status, headers, body }: Refusal = refusal(reservation.decision, "text/html");
console.log(status, headers["Retry-After"]);

const slices = new PrepaidSlices(client, { hits: 1_000 });
const prepaid: Decision = await slices.check(ada);
if (prepaid.source === "prepaid") await slices.close();

const admin = new Client("127.0.0.1:8081", { adminToken: "secret" });
const [result] = await admin.setLimits([{ domain: "shop", key: ada.descriptors[0], requestsPerUnit: 9, unit: "hour" }]);
if (result?.error?.reason === "OTHER_VERSION") await admin.clearLimits("shop", ada.descriptors);
for await (const { version, ...limit } of admin.listLimits("shop", [["user", "ada"]]))
  await admin.setLimits([{ ...limit, note: limit.setAt?.toString(), replacesVersion: version }]);

// @ts-expect-error: a limit has a key
await admin.setLimits([{ domain: "shop", requestsPerUnit: 9 }]);
// @ts-expect-error: not a slice
new PrepaidSlices(client, { hits: "many" });
// @ts-expect-error: not what happens at the expiry
await client.reserve(ada, { onExpiry: "shrug" });
// @ts-expect-error: not a decision
new Client("127.0.0.1:8081", { onNoAnswer: "shrug" });
// @ts-expect-error: a descriptor has entries
await client.check({ domain: "shop", descriptors: [{ user: "ada" }] });
// @ts-expect-error: not a unit
await client.peek({ domain: "shop", descriptors: [{ entries: [], limit: { requestsPerUnit: 1, unit: "fortnight" } }] });
// @ts-expect-error: a decision does not change
prepaid.allowed = true;
