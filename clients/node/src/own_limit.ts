// Limits of their own, which keys have in place of the numbers of their rules.

import type { LimitError } from "./errors.js";
import type { Unit } from "./limit.js";
import type { Descriptor } from "./request.js";

/** A limit of its own of one key. A number that is left out is that of the rule. */
export interface OwnLimit {
  readonly domain: string;
  /** The descriptor of calls, without limit and hits. */
  readonly key: Descriptor;
  /** Hits that pass in `unit`, or in the unit or window of the rule; 0 lets none pass. */
  readonly requestsPerUnit?: number | undefined;
  /** For token and leaky buckets and queues. */
  readonly unit?: Unit | undefined;
  /** What a bucket holds, or a queue lets wait. */
  readonly burst?: number | undefined;
  /** Tokens that are refilled at once. */
  readonly refillAmount?: number | undefined;
  /** Calls in flight. */
  readonly maxInFlight?: number | undefined;
  /** The largest debt. */
  readonly overdraftLimit?: number | undefined;
  /** Everything passes and is counted. Without numbers. */
  readonly unlimited?: boolean | undefined;
  /** The time until the limit ends by itself, in milliseconds. Left out: it stays until it is cleared. */
  readonly expiresAfterMs?: number | undefined;
  /** At most 1,024 bytes, for operators. */
  readonly note?: string | undefined;
  /** Who sets it, at most 256 bytes; in results the name of a client certificate, if there was one. */
  readonly setBy?: string | undefined;
  /** In results: whether `setBy` is only what a caller has said. */
  readonly setByIsClaimed?: boolean | undefined;
  /** In results: when it was set. */
  readonly setAt?: Date | undefined;
  /** In results: grows with each change. */
  readonly version?: number | undefined;
  /** To set it: the version that it replaces, 0 if the key has no limit of its own. Left out: any. */
  readonly replacesVersion?: number | undefined;
}

/** What has become of the limit of its own of one key. */
export interface LimitResult {
  /** The one that applies now; undefined if the numbers of the rule do, or if nothing is known. */
  readonly limit: OwnLimit | undefined;
  /** The name of the rule, or its path. */
  readonly rule: string;
  /** Why nothing was read or changed. */
  readonly error: LimitError | undefined;
}
