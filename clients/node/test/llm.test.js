import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { connectedClient, eventually, PATIENT, relay, requestOf, start, startTollgate } from "./processes.js";

const PROGRAM = fileURLToPath(new URL("../example/llm.js", import.meta.url));

async function startExample(t) {
  const { address } = await startTollgate(t);
  const client = await connectedClient(t, address, PATIENT);
  const { address: limiter, loseAnswers } = await relay(t, address);
  // Long enough for a busy machine to reserve, and to cancel.
  const arguments_ = [PROGRAM, "--limiter", limiter, "--timeout-ms", "2000", "--port", "0"];
  const { found } = await start(t, process.execPath, arguments_, (line) => line.match(/^listening on (.*)$/)?.[1]);
  const ask = (maxTokens, options = {}) =>
    fetch(`http://${found}/?max_tokens=${maxTokens}`, { headers: { user: "ada" }, ...options });
  const remaining = async () =>
    (await client.peek(requestOf("tokens", "ada"))).limits[0].remaining;
  return { ask, remaining, loseAnswers };
}

test("llm_example_charges_the_tokens_that_were_sent", async (t) => {
  const { ask, remaining } = await startExample(t);

  const text = await (await ask(20)).text();

  assert.equal(text.trim().split(" ").length, 20);
  assert.equal(await remaining(), 980);
  assert.equal((await ask(981)).status, 429);
  assert.equal((await ask("many")).status, 400);
  assert.equal(await remaining(), 980);
});

test("llm_example_gives_tokens_back_if_the_caller_goes_away", async (t) => {
  const { ask, remaining } = await startExample(t);
  const caller = new AbortController();
  const response = await ask(1_000, { signal: caller.signal });
  await response.body.getReader().read();
  assert.equal(await remaining(), 0);

  caller.abort();

  const left = await eventually("the reservation is settled", remaining);
  assert.ok(left < 1_000, left);
});

test("llm_example_cancels_reservation_whose_answer_is_lost", async (t) => {
  const { ask, remaining, loseAnswers } = await startExample(t);
  await (await ask(1)).text();
  assert.equal(await remaining(), 999);
  loseAnswers();

  const answer = ask(600);
  await eventually("tokens are held", async () => (await remaining()) === 399);

  await eventually("they are given back", async () => (await remaining()) === 999);
  assert.equal((await answer).status, 503);
});
