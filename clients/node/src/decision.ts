// What is decided about a request.

import type { NoAnswerError } from "./errors.js";
import type { Unit } from "./request.js";

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
  /** Milliseconds until the window ends or the bucket is full; if the limit refuses, until the same hits pass. */
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
}

/** The default decision. */
export function defaultDecision(allowed: boolean, noAnswer: NoAnswerError): Decision {
  const unknown = { delayMs: 0, retryAfterMs: undefined, limits: [], degraded: false };
  return { allowed, source: "default", ...unknown, noAnswer };
}

/** The decision as it reads when this time has passed. */
export function after(decision: Decision, elapsedMs: number): Decision {
  const left = (ms: number) => Math.max(0, ms - elapsedMs);
  const leftOf = (ms: number | undefined) => (ms === undefined ? undefined : left(ms));
  return {
    ...decision,
    retryAfterMs: leftOf(decision.retryAfterMs),
    limits: decision.limits.map((limit) => ({
      ...limit,
      resetAfterMs: left(limit.resetAfterMs),
      retryAfterMs: leftOf(limit.retryAfterMs),
    })),
  };
}

/**
 * The limit to report: of those that refuse, the one with the fewest hits left and then the longest wait; otherwise the
 * one with the fewest hits left. The first one wins a tie.
 */
export function tightest({ limits }: Decision): LimitStatus | undefined {
  let best: LimitStatus | undefined;
  for (const next of limits) if (best === undefined || isTighter(next, best)) best = next;
  return best;
}

function isTighter(next: LimitStatus, best: LimitStatus): boolean {
  if (next.refused !== best.refused) return next.refused;
  if (next.remaining !== best.remaining) return next.remaining < best.remaining;
  return next.refused && next.resetAfterMs > best.resetAfterMs;
}
