// Hits that are held until it is known how many were used.

import type { Decision } from "./decision.js";
import type { OnExpiry, Request } from "./request.js";

/** For how long a reservation holds its hits. */
export interface Terms {
  /** Whole milliseconds until it expires: 1 to 86,400,000, by default 60,000. */
  readonly ttlMs?: number | undefined;
  /** What happens then to the hits of each descriptor without its own, by default `release`. */
  readonly onExpiry?: OnExpiry | undefined;
}

export interface Reservation {
  /** What was reserved. */
  readonly request: Request;
  /** Whether the request may go on; the default without an answer. */
  readonly decision: Decision;
  /**
   * Empty if nothing is held. Without an answer, the server may hold the hits or not, and the id is that under which it
   * may.
   */
  readonly id: string;
  /** Whether a reservation of this id was made before and is not open any more. Then nothing is held. */
  readonly ended: boolean;
}

/**
 * What was known of a reservation: it was open; it had expired and stayed charged; it had expired and was released; or
 * nothing.
 */
export type SettledOutcome = "open" | "charged" | "released" | "unknown";

/** Hits of single descriptors, by their index. */
export type HitsByIndex = { readonly [index: number]: number };

/** One limit of a reservation that has ended. */
export interface SettledLimit {
  /** The index of the descriptor in the request. */
  readonly descriptor: number;
  /** The name of the rule, or its path if it has none. Empty for a limit that the caller sent. */
  readonly rule: string;
  readonly outcome: SettledOutcome;
  /** Hits that the reservation held; 0 if the outcome is `released` or `unknown`. */
  readonly reserved: number;
  /** Of the hits that were used, those that were not charged because the limit does not go as far. */
  readonly notCharged: number;
  /** Hits that are left. */
  readonly remaining: number;
  /** Milliseconds until the window ends or the bucket is full. */
  readonly resetAfterMs: number;
}

/** How a reservation has ended. */
export interface Settlement {
  /** The limits that apply, in the order of the descriptors; none if nothing was held. */
  readonly limits: readonly SettledLimit[];
  /** Whether the outcome of a limit is `unknown`. */
  readonly unknown: boolean;
}
