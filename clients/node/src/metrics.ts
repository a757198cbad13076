// What the client counts.

import type { Decision } from "./decision.js";

/** Called for checks, not for peeks and refunds. If a function throws, the check rejects with its error. */
export interface Metrics {
  /** A check was decided; `latencyMs` is the time that the caller waited. */
  checked(decision: Decision, latencyMs: number): void;
  /** A call with this number of checks is sent. */
  batchSent(size: number): void;
  /** The settlement of a slice had no answer: these hits were not spent and stay charged. */
  lost?(hits: number): void;
}

/** Counts in memory. */
export class Stats implements Metrics {
  checks = 0;
  allowed = 0;
  denied = 0;
  /** Of `allowed`: by prepaid slices. */
  prepaid = 0;
  /** Of `denied`: by the deny cache. */
  deniedLocally = 0;
  /** Of `allowed` and `denied`: by default, for each reason. */
  readonly defaults = new Map<string, number>();
  batches = 0;
  /** The checks of all batches. */
  batchedChecks = 0;
  largestBatch = 0;
  latencyMsSum = 0;
  latencyMsMax = 0;
  /** Hits of slices that stay charged although they were not spent. */
  lostHits = 0;

  checked({ allowed, source, noAnswer }: Decision, latencyMs: number): void {
    this.checks += 1;
    if (allowed) this.allowed += 1;
    else this.denied += 1;
    if (source === "prepaid") this.prepaid += 1;
    if (source === "deny_cache") this.deniedLocally += 1;
    if (noAnswer) this.defaults.set(noAnswer.code, (this.defaults.get(noAnswer.code) ?? 0) + 1);
    this.latencyMsSum += latencyMs;
    this.latencyMsMax = Math.max(this.latencyMsMax, latencyMs);
  }

  batchSent(size: number): void {
    this.batches += 1;
    this.batchedChecks += size;
    this.largestBatch = Math.max(this.largestBatch, size);
  }

  lost(hits: number): void {
    this.lostHits += hits;
  }
}
