import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, InvalidRequestError, NoAnswerError } from "tollgate-ratelimit-client";
import { CLIENT_NUMBERS } from "../dist/client.js";
import { decode, withDefaults } from "../dist/codec.js";
import { DenyCache } from "../dist/deny_cache.js";
import { numberOptions } from "../dist/options.js";
import { SLICE_NUMBERS } from "../dist/prepaid.js";
import { ParsedRequest } from "../dist/request.js";
import { SliceTable } from "../dist/slice_table.js";
import {
  answerOf,
  camelCase,
  describeDecision,
  expectedOf,
  optionsOf,
  requestOf,
  startScripted,
  userOf,
  vectorsOf,
  wireOf,
} from "./scripted.js";

const SHORT = {
  allowed: { allowed: true, source: "server" },
  denied: { allowed: false, source: "server" },
  settled: { settled: true },
};

class Run {
  calls = new Map();
  reservations = new Map();
  served = [];
  ids = new Map();
  outcomes = {};
  sizes = [];

  constructor(server, options) {
    this.server = server;
    this.client = new Client(server.address, { ...optionsOf(options), adminToken: "secret", metrics: this });
  }

  checked(outcome) {
    this.outcomes[outcome] = (this.outcomes[outcome] ?? 0) + 1;
  }

  sent(batch) {
    this.sizes.push(batch);
  }

  // Waits until the client is connected to all servers, if there are several.
  async connect() {
    const seen = new Set();
    while (this.server.servers > 1 && seen.size < this.server.servers) {
      const peek = this.client.peek(requestOf("ann"));
      const call = await this.server.next();
      seen.add(call.server);
      call.reply({ answers: ["allowed"] });
      await peek;
    }
  }

  // Without `waiting`: a check waits for a call before its function returns.
  async step(step) {
    const name = step.of ?? (step.request && userOf(step.request));
    if (step.call) this.calls.set(name, this.call(name, step).catch(describeError));
    for (const request of step.queue ?? [])
      this.calls.set(userOf(request), this.call(userOf(request), { call: "check", request }).catch(describeError));
    if (step.receive) await this.receive(step);
    if (step.reply) this.served[step.reply - 1].reply(step);
    if (step.close) this.client.close();
    const results = { ...step.results, ...(step.result && { [name]: step.result }) };
    for (const [each, short] of Object.entries(results)) {
      const expected = SHORT[short] ?? short;
      assert.deepEqual(expectedOf(await this.calls.get(each), expected), expected, each);
    }
    if (step.metrics) assert.deepEqual({ outcomes: this.outcomes, sent: this.sizes }, step.metrics);
  }

  async call(name, { call, request, terms, actual, hits }) {
    if (call === "settle" || call === "cancel") {
      await this.client[call](this.reservations.get(name), actual, hits);
      return { settled: true };
    }
    if (call !== "reserve") return describeDecision(await this.client[call](requestOf(request)));
    const { ttl_ms: ttlMs, on_expiry: onExpiry } = terms ?? {};
    const reservation = await this.client.reserve(requestOf(request), { ttlMs, onExpiry });
    this.reservations.set(name, reservation);
    return { ...describeDecision(reservation.decision), ended: reservation.ended };
  }

  async receive(step) {
    const { call: method = "check", answers, fails, first_fails: firstFails } = step;
    let { elsewhere } = step;
    let call = await this.receiveOne(step, method);
    if (firstFails) {
      elsewhere = this.served.length;
      call.reply({ fails: firstFails });
      call = await this.receiveOne(step, method);
    }
    if (elsewhere) assert.notEqual(call.server, this.served[elsewhere - 1].server);
    if (answers || fails || method === "settle" || method === "cancel") call.reply(step);
  }

  async receiveOne(step, method) {
    const call = await this.server.next();
    this.served.push(call);
    assert.equal(call.method.toLowerCase(), method);
    assert.ok(!call.isAuthorized, "the admin token is sent");
    const { requests, ttl, onExpiry, reservationId, ...message } = call.message;
    if (requests) {
      assert.deepEqual(requests, step.receive.map(wireOf));
    } else {
      const { domain, descriptors, hits } = wireOf(step.receive[0]);
      const amounts = { reserve: { amount: hits }, settle: { actual: step.actual }, cancel: {} };
      assert.deepEqual(message, { domain, descriptors, ...amounts[method] });
      assert.equal(reservationId, this.idOf(step.reservation_id, reservationId));
    }
    if (step.receive_terms) {
      const terms = { ttl_ms: ttl.seconds * 1_000 + ttl.nanos / 1e6, on_expiry: onExpiry.toLowerCase() };
      assert.deepEqual(terms, step.receive_terms);
    }
    return call;
  }

  // A variable is bound to the first id that is received.
  idOf(expected, received) {
    if (!expected.startsWith("$")) return expected;
    if (!this.ids.has(expected)) {
      assert.match(received, /^[0-9a-f]{32}$/);
      assert.ok(![...this.ids.values()].includes(received), "the id of another reservation");
      this.ids.set(expected, received);
    }
    return this.ids.get(expected);
  }
}

function describeError(error) {
  if (error instanceof InvalidRequestError) return { error: ["invalid_request", error.message] };
  if (error instanceof NoAnswerError) return { error: ["no_answer", error.code, error.message] };
  throw error;
}

for (const file of ["batches", "defaults", "ids", "reservations", "retries"])
  for (const vector of vectorsOf(file).filter(({ steps }) => steps))
    test(vector.name, { timeout: 20_000 }, async (t) => {
      const run = new Run(await startScripted(t, vector.addresses), vector.options);
      t.after(() => run.client.close());
      await run.connect();
      for (const step of vector.steps) await run.step(step);
      assert.deepEqual(run.server.calls, []);
    });

const RESOLVED = {
  client: (options) => ({ onNoAnswer: "allow", ...numberOptions(CLIENT_NUMBERS, options) }),
  slices: (options) => numberOptions(SLICE_NUMBERS, options),
  terms: withDefaults,
};

for (const vector of vectorsOf("defaults").filter(({ of }) => of))
  test(vector.name, () => {
    const { of, defaults = {}, option = "", valid = [], invalid = [] } = vector;
    const resolved = RESOLVED[of];
    for (const [each, value] of Object.entries(defaults)) assert.equal(resolved({})[camelCase(each)], value, each);
    const field = camelCase(option);
    for (const value of valid) assert.equal(resolved({ [field]: value })[field], value);
    for (const value of invalid) assert.throws(() => resolved({ [field]: value }), { message: RegExp(field) }, value);
  });

const parse = (request) => new ParsedRequest(requestOf(request));

function cacheStep(cache, ends, step) {
  if (step.clear) return cache.clear(step.at);
  const { check, refuse, refund, begin, end, at, sent, retry_after_ms: retry, reset_after_ms: reset = retry } = step;
  const request = parse(check ?? refuse ?? refund ?? begin ?? end);
  const [key, hits] = [request.key, request.hitsOfEach()];
  if (refuse) {
    const done = cache.begin(key);
    const limits = [{ refused: true, resetAfterMs: reset, retryAfterMs: retry }];
    cache.refuse(key, hits, { allowed: false, source: "server", retryAfterMs: retry, limits }, sent);
    done();
  }
  if (refund) cache.refund(key, at);
  if (begin) ends.push(cache.begin(key));
  if (end) ends.shift()();
  if (check) {
    const denied = cache.denied(key, hits, at);
    if (typeof step.denied === "boolean") assert.equal(denied !== undefined, step.denied);
    else {
      assert.equal(denied?.source, "deny_cache");
      assert.deepEqual(expectedOf(describeDecision(denied), step.denied), step.denied);
    }
  }
}

for (const { name, options, steps } of vectorsOf("deny_cache"))
  test(name, () => {
    const { denyCacheKeys = 10_000, denyCacheMaxMs = 1_000 } = optionsOf(options);
    const [cache, ends] = [new DenyCache(denyCacheKeys, denyCacheMaxMs), []];
    for (const step of steps) cacheStep(cache, ends, step);
  });

const ERRORS = { no_answer: new NoAnswerError("UNAVAILABLE", ""), invalid: new InvalidRequestError("") };

// What the client makes of an answer to a reservation.
function reservationOf({ reserved, held = true }) {
  if (reserved === "invalid") return undefined;
  if (reserved === "no_answer") return { id: "chosen", decision: { source: "default" } };
  const decision = decode(answerOf(reserved));
  return { id: decision.allowed && held ? "held" : "", decision };
}

class SliceRun {
  ends = new Map();
  last = 0;

  constructor(options) {
    this.table = new SliceTable(numberOptions(SLICE_NUMBERS, optionsOf(options)));
  }

  step(step) {
    const { at, check, key: user = "red", calls = [] } = step;
    const request = parse(check ?? user);
    const { reserve, ends, lost } = this.actionsOf(step, request, at);
    this.ends.set(request.key, [...(this.ends.get(request.key) ?? []), ...ends]);
    const begun = ends.map(({ spent }) => (spent === undefined ? "cancel" : `settle ${spent}`));
    if (reserve) begun.push("reserve");
    if (lost > 0) begun.push(`lost ${lost}`);
    assert.deepEqual(begun, calls, JSON.stringify(step));
    this.last = at;
  }

  actionsOf(step, request, at) {
    const nothing = { reserve: false, ends: [], lost: 0 };
    const { key } = request;
    if (step.check) {
      const { decision, actions } = this.table.serves(request) ? this.table.check(request, at) : { actions: nothing };
      assert.equal(decision?.limits[0].remaining ?? null, step.remaining, JSON.stringify(step));
      if (step.reset_after_ms !== undefined) assert.equal(decision.limits[0].resetAfterMs, step.reset_after_ms);
      return actions;
    }
    if (step.reserved) return this.table.reserved(key, reservationOf(step), at);
    if (step.ended) return this.table.ended(key, this.ends.get(key).shift(), ERRORS[step.ended], at);
    if (step.close) return this.table.close(at).get(key) ?? nothing;
    assert.equal(this.table.nextDue(key, this.last), at);
    return this.table.due(key, at);
  }
}

for (const { name, options, steps } of vectorsOf("slices"))
  test(name, () => {
    const run = new SliceRun(options);
    for (const step of steps) run.step(step);
  });
