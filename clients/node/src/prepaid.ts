// Requests of hot keys, allowed without a call for each: a part of the limit is reserved, and spent here.

import { setTimeout as wait } from "node:timers/promises";

import type { Client } from "./client.js";
import { type Decision, after } from "./decision.js";
import { KEY_LENGTH_MAX } from "./deny_cache.js";
import { numberOption } from "./options.js";
import { type CheckOptions, type Descriptor, requestWithHits } from "./request.js";
import { type Reservation, type Settlement, TTL_MAX_MS } from "./reservation.js";

/** The size of prepaid slices. */
export interface SliceOptions {
  /** Hits of each slice, by default 100; at most what the limit has left, or there is no slice. */
  readonly hits?: number | undefined;
  /** The time for which a slice may be spent at most, in milliseconds: 1 to 86,400,000, by default 5,000. */
  readonly ttlMs?: number | undefined;
  /** The maximum number of keys with a slice, by default 100. Checks of further keys ask the server. */
  readonly maxKeys?: number | undefined;
}

/** Hits that this process may spend. */
interface Slice {
  readonly reservation: Reservation;
  // From an instant before that of the server, so the slice ends no later than there.
  readonly begin: number;
  readonly until: number;
  left: number;
  // Set when little is left.
  isLow: boolean;
  // Ends the wait for the renewal.
  onLow: () => void;
}

/** What keeps a slice of one key. */
interface Keeper {
  // Undefined while the first slice is being reserved, or was refused.
  slice: Slice | undefined;
  // Ends each wait, at the close.
  wake: () => void;
}

// The longest pause between attempts to reserve a slice that the server refuses.
const REFUSED_PAUSE_MAX_MS = 1_000;
// A slice that lasts less is not worth its calls.
const SLICE_TIME_MIN_MS = 50;
// Pauses before the end of a slice is repeated.
const END_PAUSES_MS = [100, 400];

/**
 * Allows requests of hot keys without a call for each: a part of the limit is reserved and spent here. The hits of a
 * slice count from its reservation, so no more passes than the limit. If the process ends without `close`, slices stay
 * charged.
 *
 * While clients hold slices, others may be refused although not all hits are used. A slice never outlasts the window of
 * its limit.
 */
export class PrepaidSlices {
  readonly #client: Client;
  readonly #hits: number;
  readonly #ttlMs: number;
  readonly #maxKeys: number;
  readonly #keepers = new Map<string, Keeper>();
  // The ends of all keepers.
  readonly #ends = new Set<Promise<void>>();
  #closed = false;

  /** Slices that are reserved by this client. Close them before it. */
  constructor(client: Client, { hits, ttlMs, maxKeys }: SliceOptions = {}) {
    this.#client = client;
    this.#hits = numberOption("hits", hits, { min: 1, max: Number.MAX_SAFE_INTEGER, usual: 100 });
    this.#ttlMs = numberOption("ttlMs", ttlMs, { min: 1, max: TTL_MAX_MS, usual: 5_000 });
    this.#maxKeys = numberOption("maxKeys", maxKeys, { min: 0, max: 1_000_000, usual: 100 });
  }

  /**
   * Spends hits of the slice of these descriptors. Without a slice, or if it has too few hits left, it is
   * `Client.check`. A check with more hits than a slice, with a `requestId`, or with hits of a descriptor has no slice.
   *
   * @throws InvalidRequestError if the request is invalid
   */
  async check(
    domain: string,
    descriptors: readonly Descriptor[],
    hits = 1,
    options: CheckOptions = {},
  ): Promise<Decision> {
    const begin = performance.now();
    requestWithHits(domain, descriptors, hits);
    const hasSlice = hits <= this.#hits && options.requestId === undefined;
    const key = hasSlice ? keyOf(domain, descriptors) : undefined;
    if (key !== undefined) {
      const keeper = this.#keepers.get(key);
      const decision = keeper?.slice && this.#spend(keeper.slice, hits, begin);
      if (decision) {
        this.#client.metrics?.checked(decision, performance.now() - begin);
        return decision;
      }
      if (keeper === undefined) this.#start(key, domain, descriptors);
    }
    return this.#client.check(domain, descriptors, hits, options);
  }

  /**
   * Settles all slices at the hits that were spent, which takes at most seven timeouts of the client and a second.
   * Checks from then on ask the server.
   */
  async close(): Promise<void> {
    this.#closed = true;
    for (const keeper of this.#keepers.values()) keeper.wake();
    await Promise.all(this.#ends);
  }

  // Undefined if the slice has ended, or has too few hits.
  #spend(slice: Slice, hits: number, now: number): Decision | undefined {
    if (this.#closed || now >= slice.until) return undefined;
    const isEnough = hits <= slice.left;
    if (isEnough) slice.left -= hits;
    if (!isEnough || slice.left <= this.#hits / 4) {
      slice.isLow = true;
      slice.onLow();
    }
    if (!isEnough) return undefined;
    const decision = after(slice.reservation.decision, now - slice.begin);
    const limits = decision.limits.map((limit) => ({ ...limit, remaining: limit.remaining + slice.left }));
    return { ...decision, source: "prepaid", limits };
  }

  #start(key: string, domain: string, descriptors: readonly Descriptor[]): void {
    if (this.#closed || this.#keepers.size >= this.#maxKeys) return;
    const keeper: Keeper = { slice: undefined, wake: () => {} };
    this.#keepers.set(key, keeper);
    const end = this.#keep(key, keeper, domain, copyOf(descriptors));
    this.#ends.add(end);
    void end.then(() => this.#ends.delete(end));
  }

  // Keeps a slice of one key until it is refused, not used in its time, or closed. Never rejects.
  async #keep(key: string, keeper: Keeper, domain: string, descriptors: readonly Descriptor[]): Promise<void> {
    for (;;) {
      const next = await this.#reserve(keeper, domain, descriptors);
      if (next === undefined) break;
      const before = keeper.slice;
      keeper.slice = next;
      await this.#settle(before);
      if (!(await this.#isRenewed(keeper, next))) break;
    }
    this.#keepers.delete(key);
    await this.#settle(keeper.slice);
  }

  // Waits until the slice is to be renewed. It is false if there shall be no other one.
  async #isRenewed(keeper: Keeper, slice: Slice): Promise<boolean> {
    if (!slice.isLow) {
      const waited = this.#wait(keeper, ((slice.until - performance.now()) / 4) * 3);
      slice.onLow = keeper.wake;
      await waited;
    }
    return !this.#closed && slice.left < this.#hits;
  }

  // Undefined if the slice is refused, after a pause.
  async #reserve(keeper: Keeper, domain: string, descriptors: readonly Descriptor[]): Promise<Slice | undefined> {
    const begin = performance.now();
    const terms = { ttlMs: this.#ttlMs, onExpiry: "charge" } as const;
    // An invalid request is an error of the check, which asks the server too.
    const reservation = await this.#client.reserve(domain, descriptors, this.#hits, terms).catch(() => undefined);
    if (reservation === undefined) return undefined;
    const { decision, id } = reservation;
    // A turn in a queue cannot be spent later.
    if (id !== "" && decision.source === "server" && decision.delayMs === 0) {
      // Hits of a window that has ended must not be spent in the next one.
      const lasts = Math.min(this.#ttlMs, ...decision.limits.map(({ resetAfterMs }) => resetAfterMs));
      if (lasts >= SLICE_TIME_MIN_MS)
        return { reservation, begin, until: begin + lasts, left: this.#hits, isLow: false, onLow: () => {} };
    }
    // May be held without an answer. If it cannot be given back, it stays charged.
    await repeated(() => this.#client.cancel(reservation));
    await this.#wait(keeper, Math.min(decision.retryAfterMs ?? REFUSED_PAUSE_MAX_MS, REFUSED_PAUSE_MAX_MS));
    return undefined;
  }

  // Waits for a time, or until the keeper is woken. After the close it does not wait.
  #wait(keeper: Keeper, ms: number): Promise<void> {
    if (this.#closed) return Promise.resolve();
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      keeper.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  // Takes a slice that cannot be spent any more.
  async #settle(slice: Slice | undefined): Promise<void> {
    if (slice === undefined) return;
    const isSettled = await repeated(() => this.#client.settle(slice.reservation, this.#hits - slice.left));
    if (!isSettled && slice.left > 0) this.#client.metrics?.lost?.(slice.left);
  }
}

// Ends a reservation, and repeats it twice if there is no answer. A repeated end counts once.
async function repeated(end: () => Promise<Settlement>): Promise<boolean> {
  for (const pauseMs of [...END_PAUSES_MS, undefined]) {
    try {
      await end();
      return true;
    } catch {
      if (pauseMs !== undefined) await wait(pauseMs);
    }
  }
  return false;
}

// A settlement names the same descriptors as its reservation, whatever the caller has changed since.
function copyOf(descriptors: readonly Descriptor[]): Descriptor[] {
  return descriptors.map(({ entries, limit }) => ({
    entries: entries.map(([key, value]) => [key, value] as const),
    limit: limit && { ...limit },
  }));
}

// What names the counters. Undefined without a slice: with hits of its own, and if the key is so long that the number
// of keys would not bound their size.
function keyOf(domain: string, descriptors: readonly Descriptor[]): string | undefined {
  if (descriptors.some(({ hits }) => hits !== undefined)) return undefined;
  const counters = descriptors.map(({ entries, limit }) => [entries, limit?.requestsPerUnit, limit?.unit]);
  const key = JSON.stringify([domain, counters]);
  return key.length <= KEY_LENGTH_MAX ? key : undefined;
}
