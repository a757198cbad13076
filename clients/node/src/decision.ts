// What is decided about a request.

import type { NoAnswerError } from "./errors.js";
import type { Unit } from "./limit.js";

/** The state of one limit that applies to a request. */
export interface LimitStatus {
  /** The index of the descriptor in the request. */
  readonly descriptor: number;
  /** The name of the rule, or its path if it has none. Empty for a limit that the caller sent. */
  readonly rule: string;
  readonly requestsPerUnit: number;
  /** Undefined if the window is none of the units. */
  readonly unit: Unit | undefined;
  /** Hits that are left. */
  readonly remaining: number;
  /** Milliseconds until the window ends or the bucket is full; if the limit refuses, until the same hits pass; 0 if they never do. */
  readonly resetAfterMs: number;
  /** If the limit refuses: milliseconds until the same hits pass. Undefined if they never do. */
  readonly retryAfterMs: number | undefined;
  /** Whether the limit refuses the request. */
  readonly refused: boolean;
  /** Whether it would, but its rule is in shadow mode. */
  readonly refusedInShadow: boolean;
  /** Whether the candidate of its rule would refuse the request. */
  readonly refusedByCandidate: boolean;
  /** Whether it was decided without the owner of its counter. */
  readonly degraded: boolean;
}

/**
 * What made a decision: the server; the deny cache, because the server refused the same request before; a prepaid
 * slice; or the option `onNoAnswer`, because the server gave no answer.
 */
export type Source = "server" | "deny_cache" | "prepaid" | "default";

/** The decision on a request. Times are in milliseconds, with fractions. */
export interface Decision {
  readonly allowed: boolean;
  readonly source: Source;
  /** The time that the caller waits before it goes on; above 0 only with `leaky_queue`. */
  readonly delayMs: number;
  /** If the request is denied: the time until it would pass. Undefined if it never would, or if this is not known. */
  readonly retryAfterMs: number | undefined;
  /** The limits that apply, in the order of the descriptors. */
  readonly limits: readonly LimitStatus[];
  /** Whether a limit was decided without the owner of its counter, which could not be reached. */
  readonly degraded: boolean;
  /** Why the default applies, if it does. */
  readonly noAnswer: NoAnswerError | undefined;
  /** Why a denied request would never pass, with the largest amount that can; empty if it may pass later. */
  readonly neverBecause: string;
}

/** The default decision. */
export function defaultDecision(allowed: boolean, noAnswer: NoAnswerError): Decision {
  const unknown = { delayMs: 0, retryAfterMs: undefined, limits: [], degraded: false, neverBecause: "" };
  return { allowed, source: "default", ...unknown, noAnswer };
}

/** The decision of this source, which repeats that of the server when this time has passed. */
export function after(decision: Decision, source: Source, elapsedMs: number): Decision {
  const left = (ms: number) => Math.max(0, ms - elapsedMs);
  const leftOf = (ms: number | undefined) => (ms === undefined ? undefined : left(ms));
  return {
    ...decision,
    source,
    retryAfterMs: leftOf(decision.retryAfterMs),
    limits: decision.limits.map((limit) => ({
      ...limit,
      resetAfterMs: left(limit.resetAfterMs),
      retryAfterMs: leftOf(limit.retryAfterMs),
    })),
  };
}

/**
 * The limit to report: of a denied request, the limits that refuse come first; then the one with the fewest hits left;
 * of those that deny, the one with the longest wait. The first one wins a tie.
 */
export function tightest({ allowed, limits }: Decision): LimitStatus | undefined {
  const denies = ({ refused }: LimitStatus) => !allowed && refused;
  const isTighter = (next: LimitStatus, best: LimitStatus) => {
    if (denies(next) !== denies(best)) return denies(next);
    if (next.remaining !== best.remaining) return next.remaining < best.remaining;
    return denies(next) && next.resetAfterMs > best.resetAfterMs;
  };
  let best: LimitStatus | undefined;
  for (const next of limits) if (best === undefined || isTighter(next, best)) best = next;
  return best;
}
