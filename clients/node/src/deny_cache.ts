// Requests that the server refused, refused here until they would pass.

import { type Decision, after } from "./decision.js";

interface Refusal {
  // Of each descriptor: as many or more are refused too.
  readonly hits: readonly number[];
  readonly decision: Decision;
  // When the check was sent. The server decided after it, so a local refusal ends in time.
  readonly sent: number;
  readonly until: number;
}

/** Checks of one key that are under way. */
interface Checks {
  count: number;
  // The server may have decided those that were sent earlier before the last refund or change of limits.
  refunded: number;
}

export class DenyCache {
  readonly #keysMax: number;
  readonly #maxMs: number;
  // Invariant: the oldest comes first.
  readonly #refusals = new Map<string, Refusal>();
  readonly #underWay = new Map<string, Checks>();

  /** `maxMs` is the longest time for which a request is refused here. */
  constructor(keysMax: number, maxMs: number) {
    this.#keysMax = keysMax;
    this.#maxMs = maxMs;
  }

  /** The decision that the server would make at the instant `now`, if it is certain to refuse. */
  denied(key: string, hits: readonly number[], now: number): Decision | undefined {
    const refusal = this.#refusals.get(key);
    if (refusal === undefined || now >= refusal.until) return undefined;
    // Fewer hits may pass earlier.
    if (hits.some((each, index) => each < (refusal.hits[index] ?? 0))) return undefined;
    return after(refusal.decision, "deny_cache", now - refusal.sent);
  }

  /** A check of a key is under way until the returned function is called. */
  begin(key: string): () => void {
    const checks = this.#underWay.get(key) ?? { count: 0, refunded: Number.NEGATIVE_INFINITY };
    this.#underWay.set(key, checks);
    checks.count += 1;
    return () => {
      checks.count -= 1;
      if (checks.count === 0) this.#underWay.delete(key);
    };
  }

  /** Remembers a refusal, if it ends, of a check that was sent at the instant `sent` and is under way. */
  refuse(key: string, hits: readonly number[], decision: Decision, sent: number): void {
    const { retryAfterMs = 0 } = decision;
    if (this.#keysMax === 0 || retryAfterMs <= 0) return;
    if (sent < (this.#underWay.get(key)?.refunded ?? sent)) return;
    this.#refusals.delete(key);
    this.#refusals.set(key, { hits, decision, sent, until: sent + Math.min(retryAfterMs, this.#maxMs) });
    if (this.#refusals.size > this.#keysMax) {
      const [oldest] = this.#refusals.keys();
      if (oldest !== undefined) this.#refusals.delete(oldest);
    }
  }

  /** Forgets the refusals of checks that were sent before the instant `now`, at which hits were given back. */
  refund(key: string, now: number): void {
    this.#refusals.delete(key);
    const checks = this.#underWay.get(key);
    if (checks) checks.refunded = now;
  }

  /** Forgets all refusals of checks that were sent before the instant `now`. */
  clear(now: number): void {
    this.#refusals.clear();
    for (const checks of this.#underWay.values()) checks.refunded = now;
  }
}
