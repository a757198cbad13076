import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { connectedClient, eventually, PATIENT, relay, start, startTollgate } from "./processes.js";

const PROGRAM = fileURLToPath(new URL("../example/llm.js", import.meta.url));
const RULES = readFileSync(new URL("../../llm.yaml", import.meta.url), "utf8");

async function startExample(t, paceMs) {
  const { address } = await startTollgate(t, { rules: RULES });
  const client = await connectedClient(t, address, PATIENT);
  const { address: limiter, loseAnswers } = await relay(t, address);
  // Long enough for a busy machine to reserve, and to cancel.
  const options = ["--tollgate", limiter, "--timeout-ms", "2000", "--port", "0", "--pace-ms", String(paceMs)];
  const { found } = await start(t, process.execPath, [PROGRAM, ...options], (line) =>
    line.match(/^listening on (.*)$/)?.[1],
  );
  const ask = (maxTokens, options = {}) =>
    fetch(`http://${found}/chat?max_tokens=${maxTokens}`, { headers: { user: "ada" }, ...options });
  // The tokens of the month, and the calls in flight.
  const used = async () => {
    const descriptors = ["tokens_of_month", "in_flight"].map((key) => ({ entries: [[key, "ada"]] }));
    const { limits } = await client.peek({ domain: "models", descriptors });
    return [1_000_000 - limits[0].remaining, 4 - limits[1].remaining];
  };
  const eventuallyUsed = (tokens, inFlight) =>
    eventually(`${tokens} and ${inFlight} are used`, async () => String(await used()) === `${tokens},${inFlight}`);
  return { ask, used, eventuallyUsed, loseAnswers };
}

test("llm_example_charges_the_tokens_that_were_sent", async (t) => {
  const { ask, used, eventuallyUsed } = await startExample(t, 0);

  assert.equal(await (await ask(500)).text(), "Limits are kept exactly.\n".repeat(3));

  await eventuallyUsed(18, 0);
  const never = await ask(10_001);
  assert.deepEqual([never.status, never.headers.get("retry-after")], [429, null]);
  assert.equal((await ask("many")).status, 400);
  assert.deepEqual(await used(), [18, 0]);
});

test("llm_example_gives_tokens_back_if_the_caller_goes_away", async (t) => {
  const { ask, used } = await startExample(t, 300);
  const caller = new AbortController();
  const response = await ask(6_000, { signal: caller.signal });
  await response.body.getReader().read();
  assert.deepEqual(await used(), [6_000, 1]);

  caller.abort();

  const tokens = await eventually("the place is free", async () => {
    const [month, inFlight] = await used();
    return inFlight === 0 && month;
  });
  assert.ok(tokens < 18, tokens);
});

test("llm_example_cancels_reservation_whose_answer_is_lost", async (t) => {
  const { ask, eventuallyUsed, loseAnswers } = await startExample(t, 0);
  await (await ask(1)).text();
  await eventuallyUsed(1, 0);
  loseAnswers();

  const answer = ask(600);
  await eventuallyUsed(601, 1);

  await eventuallyUsed(1, 0);
  assert.equal((await answer).status, 503);
});
