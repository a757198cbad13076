// Requests that the server refused, refused here until they would pass.

import { type Decision, after } from "./decision.js";
import type { Request } from "./request.js";

/** A longer key is not stored, so that the size of a cache is bounded by its number of keys. */
export const KEY_LENGTH_MAX = 4_096;

interface Denial {
  readonly hits: number;
  // The limits and hits of the descriptors. The same counters can pass under others.
  readonly terms: string;
  readonly decision: Decision;
  readonly since: number;
  readonly until: number;
}

/** Checks of one key that are under way. */
interface Checks {
  number: number;
  // The server may have decided those that began earlier before the last refund.
  refunded: number;
}

export class DenyCache {
  readonly #maxKeys: number;
  readonly #maxMs: number;
  // Invariant: the oldest comes first.
  readonly #denials = new Map<string, Denial>();
  readonly #underWay = new Map<string, Checks>();

  /** `maxMs` is the longest time for which a request is refused here. */
  constructor(maxKeys: number, maxMs: number) {
    this.#maxKeys = maxKeys;
    this.#maxMs = maxMs;
  }

  get size(): number {
    return this.#denials.size;
  }

  /** The decision that the server would make at the instant `now`, if it is certain to refuse. */
  lookup(request: Request, now: number): Decision | undefined {
    if (this.#denials.size === 0) return undefined;
    const key = keyOf(request);
    const denial = this.#denials.get(key);
    if (denial === undefined) return undefined;
    if (now >= denial.until) {
      this.#denials.delete(key);
      return undefined;
    }
    // Fewer hits may pass earlier.
    if (request.hits < denial.hits || termsOf(request) !== denial.terms) return undefined;
    return { ...after(denial.decision, now - denial.since), source: "deny_cache" };
  }

  /** A check of a request is under way until the returned function is called. */
  begin(request: Request): () => void {
    const key = keyOf(request);
    const checks = this.#underWay.get(key) ?? { number: 0, refunded: Number.NEGATIVE_INFINITY };
    this.#underWay.set(key, checks);
    checks.number += 1;
    return () => {
      checks.number -= 1;
      if (checks.number === 0) this.#underWay.delete(key);
    };
  }

  /** Stores a refusal of a request that was made at the instant `since` and is under way. */
  insert(request: Request, decision: Decision, since: number): void {
    if (this.#maxKeys === 0 || decision.retryAfterMs === undefined) return;
    const key = keyOf(request);
    if (key.length > KEY_LENGTH_MAX || since < (this.#underWay.get(key)?.refunded ?? since)) return;
    this.#denials.delete(key);
    const until = since + Math.min(decision.retryAfterMs, this.#maxMs);
    this.#denials.set(key, { hits: request.hits, terms: termsOf(request), decision, since, until });
    if (this.#denials.size > this.#maxKeys) {
      const [oldest] = this.#denials.keys();
      if (oldest !== undefined) this.#denials.delete(oldest);
    }
  }

  /** Forgets the refusals of checks that began before the instant `now`, at which hits were given back. */
  refund(request: Request, now: number): void {
    const key = keyOf(request);
    this.#denials.delete(key);
    const checks = this.#underWay.get(key);
    if (checks) checks.refunded = now;
  }
}

function keyOf({ domain, descriptors }: Request): string {
  return JSON.stringify([domain, descriptors.map(({ entries }) => entries)]);
}

function termsOf({ descriptors }: Request): string {
  return JSON.stringify(descriptors.map(({ limit, hits }) => [limit?.requestsPerUnit, limit?.unit, hits]));
}
