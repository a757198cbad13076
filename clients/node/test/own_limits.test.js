// Limits of their own by the real server, as clients/behaviour.md says.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { Client, InvalidRequestError, NoAnswerError, tightest } from "tollgate-ratelimit-client";
import { clientOf, PATIENT, startTollgate } from "./processes.js";
import { camelCase, expectedOf, requestOf, vectorsOf } from "./scripted.js";

const RULES = readFileSync(new URL("../../vectors/own_limits.yaml", import.meta.url), "utf8");
const HOUR_MS = 3_600_000;

const entriesOf = (key) => (typeof key === "string" ? [["user", key]] : key);

function describe({ limit, rule, error }) {
  const { key, requestsPerUnit, unit, unlimited, note, setBy, setByIsClaimed, version, expiresAfterMs } = limit ?? {};
  if (limit) assert.ok(Math.abs(limit.setAt - Date.now()) < 60_000, limit.setAt);
  return {
    rule,
    error: error && [error.code, error.reason],
    key: key?.entries,
    requests_per_unit: requestsPerUnit,
    unit,
    unlimited,
    note,
    set_by: setBy,
    set_by_is_claimed: setByIsClaimed,
    version,
    expires_after_h: expiresAfterMs && Math.ceil(expiresAfterMs / HOUR_MS),
  };
}

class OwnLimitsRun {
  versions = new Map();

  constructor(client) {
    this.client = client;
  }

  async step(step) {
    if (step.check) {
      const decision = await this.client.check(requestOf(step.check));
      assert.equal(decision.noAnswer, undefined);
      const { requestsPerUnit, remaining } = tightest(decision) ?? {};
      const found = { allowed: decision.allowed, requests_per_unit: requestsPerUnit, remaining };
      assert.deepEqual(expectedOf(found, step.result), step.result);
      return;
    }
    if (step.error) {
      await assert.rejects(this.results(step), (error) => {
        const kind = error instanceof InvalidRequestError ? ["invalid_request"] : ["no_answer", error.code];
        assert.ok(error instanceof InvalidRequestError || error instanceof NoAnswerError, error);
        assert.deepEqual(kind, step.error);
        return true;
      });
      return;
    }
    this.compare(step, await this.results(step));
  }

  async results({ set, get, clear, list, domain = "edge", dry_run: dryRun }) {
    if (set) return this.client.setLimits(set.flatMap((limit) => this.limitsOf(limit)), { dryRun });
    const keysOf = (keys) => keys.map((key) => ({ entries: entriesOf(key) }));
    if (get) return this.client.getLimits(domain, keysOf(get));
    if (clear) return this.client.clearLimits(domain, keysOf(clear));
    const results = [];
    for await (const limit of this.client.listLimits(domain, entriesOf(list))) results.push({ limit });
    return results;
  }

  // One limit, or one for each of its users.
  limitsOf({ key, users, expires_after_h: hours, replaces_version: version, ...fields }) {
    const named = Object.fromEntries(Object.entries(fields).map(([name, value]) => [camelCase(name), value]));
    const limit = {
      domain: "edge",
      ...named,
      ...(hours !== undefined && { expiresAfterMs: hours * HOUR_MS }),
      replacesVersion: this.versions.get(version) ?? version,
    };
    const further = users === undefined ? [[]] : Array.from({ length: users }, (_, user) => [["user", String(user)]]);
    return further.map((entries) => ({ ...limit, key: { entries: [...entriesOf(key), ...entries] } }));
  }

  compare({ users, results: expected }, results) {
    if (users) {
      const found = results.map(({ limit }) => limit.key.entries.at(-1)[1]);
      assert.deepEqual(found.sort(), Array.from({ length: users }, (_, user) => String(user)).sort());
    } else if (expected) {
      assert.equal(results.length, expected.length);
      for (const [index, each] of expected.entries()) {
        const wanted = "version" in each ? { ...each, version: this.versionOf(each.version, results[index]) } : each;
        assert.deepEqual(expectedOf(describe(results[index]), wanted), wanted);
      }
    } else {
      for (const { error } of results) assert.equal(error, undefined);
    }
  }

  // A variable is bound to the first version that is received.
  versionOf(name, { limit }) {
    if (name === null) return null;
    if (!this.versions.has(name)) {
      for (const other of this.versions.values()) assert.ok(limit.version > other);
      this.versions.set(name, limit.version);
    }
    return this.versions.get(name);
  }
}

for (const { name, token = "secret", invalid, steps } of vectorsOf("own_limits"))
  test(name, async (t) => {
    const options = { ...PATIENT, adminToken: token ?? undefined };
    if (invalid) {
      assert.throws(() => new Client("127.0.0.1:1", options), { message: RegExp(camelCase(invalid)) });
      return;
    }
    const { address } = await startTollgate(t, { rules: RULES });
    const run = new OwnLimitsRun(clientOf(t, address, options));
    for (const step of steps) await run.step(step);
  });
