// Requests of hot keys, allowed without a call for each: a part of the limit is reserved, and spent here.

import type { Checker } from "./checker.js";
import type { Client } from "./client.js";
import type { Decision } from "./decision.js";
import { numberOptions, TTL_MAX_MS } from "./options.js";
import { ParsedRequest, type Request } from "./request.js";
import { type SliceActions, type SliceEnd, type SliceNumbers, SliceTable } from "./slice_table.js";

/** The size of prepaid slices. */
export interface SliceOptions {
  /** Hits of each slice, by default 100; at most what the limit has left, or there is no slice. */
  readonly hits?: number | undefined;
  /** The time for which a slice may be spent at most, in milliseconds: 1 to 86,400,000, by default 5,000. */
  readonly ttlMs?: number | undefined;
  /** The maximum number of keys with a slice, by default 100. Checks of further keys ask the server. */
  readonly keysMax?: number | undefined;
}

/** The ranges of the options. */
export const SLICE_NUMBERS = {
  hits: { min: 1, max: Number.MAX_SAFE_INTEGER, usual: 100 },
  ttlMs: { min: 1, max: TTL_MAX_MS, usual: 5_000 },
  keysMax: { min: 1, max: 1_000_000, usual: 100 },
};

/**
 * Allows requests of hot keys without a call for each: a part of the limit is reserved and spent here. The hits of a
 * slice count from its reservation, so no more passes than the limit. If the process ends without `close`, slices stay
 * charged.
 *
 * While clients hold slices, others may be refused although not all hits are used. A slice never outlasts the window of
 * its limit.
 */
export class PrepaidSlices implements Checker {
  readonly #client: Client;
  readonly #numbers: SliceNumbers;
  readonly #table: SliceTable;
  // Wake a key when something is due.
  readonly #timers = new Map<string, NodeJS.Timeout>();
  // Called when a key may have been forgotten after the close.
  #onForgotten = () => {};

  /** Slices that are reserved by this client. Close them before it. */
  constructor(client: Client, options: SliceOptions = {}) {
    this.#client = client;
    this.#numbers = numberOptions(SLICE_NUMBERS, options);
    this.#table = new SliceTable(this.#numbers);
  }

  /**
   * Spends hits of the slice of the request's counters. Without a slice, or if it has too few hits left, it is
   * `Client.check`. A request with more hits than a slice, a `requestId`, or hits of a descriptor has no slice.
   *
   * @throws InvalidRequestError if the request is invalid
   */
  async check(request: Request): Promise<Decision> {
    const begin = performance.now();
    const decision = this.#spend(request, begin);
    if (decision === undefined) return this.#client.check(request);
    this.#client.metrics?.checked("prepaid", performance.now() - begin);
    return decision;
  }

  /**
   * Settles all slices at the hits that were spent, which takes at most four timeouts of the client and half a second.
   * Checks from then on ask the server.
   */
  async close(): Promise<void> {
    const now = performance.now();
    for (const [key, actions] of this.#table.close(now)) this.#step(key, actions, now);
    await new Promise<void>((resolve) => {
      this.#onForgotten = () => this.#table.size === 0 && resolve();
      this.#onForgotten();
    });
  }

  #spend(request: Request, now: number): Decision | undefined {
    let parsed: ParsedRequest;
    try {
      parsed = new ParsedRequest(request);
    } catch {
      // The client says and counts it.
      return undefined;
    }
    if (!this.#table.serves(parsed)) return undefined;
    const { decision, actions } = this.#table.check(parsed, now);
    // What is due changes only with a call.
    if (actions.reserve || actions.ends.length > 0) this.#step(parsed.key, actions, now);
    return decision;
  }

  // Begins the calls of a key, and sets its timer.
  #step(key: string, { reserve, ends, lost }: SliceActions, now = performance.now()): void {
    const request = this.#table.requestOf(key);
    if (reserve && request) void this.#reserve(key, request);
    for (const end of ends) void this.#end(key, end);
    if (lost > 0) this.#client.metrics?.lost?.(lost);
    clearTimeout(this.#timers.get(key));
    this.#timers.delete(key);
    const at = this.#table.nextDue(key, now);
    if (at !== undefined) {
      // A timer may be early by less than a millisecond.
      const due = () => this.#step(key, this.#table.due(key, performance.now()));
      this.#timers.set(key, setTimeout(due, Math.ceil(at - now) + 1));
    }
    this.#onForgotten();
  }

  async #reserve(key: string, request: ParsedRequest): Promise<void> {
    const terms = { ttlMs: this.#numbers.ttlMs, onExpiry: "charge" } as const;
    // An invalid request is an error of the check, which asks the server too.
    const { domain, descriptors } = request;
    const reservation = await this.#client
      .reserve({ domain, descriptors, hits: this.#numbers.hits }, terms)
      .catch(() => undefined);
    this.#step(key, this.#table.reserved(key, reservation, performance.now()));
  }

  async #end(key: string, end: SliceEnd): Promise<void> {
    const { reservation, spent } = end;
    const call = spent === undefined ? this.#client.cancel(reservation) : this.#client.settle(reservation, spent);
    const error = await call.then(
      () => undefined,
      (reason: unknown) => reason,
    );
    this.#step(key, this.#table.ended(key, end, error, performance.now()));
  }
}
