// What the client counts.

/**
 * How a check ended: decided by the server, the deny cache, or a prepaid slice; by the default, because the server gave
 * no answer or too many checks waited; or `failed`, because the request is invalid.
 */
export type Outcome = "allowed" | "denied" | "denied_locally" | "prepaid" | "no_answer" | "queue_full" | "failed";

/** Receives what the client counts. Its functions must not throw. */
export interface Metrics {
  /** A check ended; `latencyMs` is the time that the caller waited. */
  checked(outcome: Outcome, latencyMs: number): void;
  /** A call with this number of checks is sent. */
  sent(batch: number): void;
  /** The settlement of a slice had no answer: these hits were not spent and stay charged. */
  lost?(hits: number): void;
}
