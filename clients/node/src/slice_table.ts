// The state of prepaid slices, without calls and without a clock.

import { type Decision, after } from "./decision.js";
import { NoAnswerError } from "./errors.js";
import type { ParsedRequest } from "./request.js";
import type { Reservation } from "./reservation.js";

// The longest pause between attempts to reserve a slice that the server refuses.
const REFUSED_PAUSE_MAX_MS = 1_000;
// A slice that lasts less is not worth its calls.
const SLICE_TIME_MIN_MS = 50;
// Pauses before the end of a slice is repeated.
const END_PAUSES_MS = [100, 400];

export interface SliceNumbers {
  readonly hits: number;
  readonly ttlMs: number;
  readonly keysMax: number;
}

/** What a step of the state begins. */
export interface SliceActions {
  reserve: boolean;
  readonly ends: SliceEnd[];
  lost: number;
}

/** A settlement or a cancellation of a reservation. */
export interface SliceEnd {
  readonly reservation: Reservation;
  /** Undefined to cancel it, because it is no slice. */
  readonly spent: number | undefined;
  // Hits that stay charged if the end has no answer.
  readonly unspent: number;
  // Those without an answer.
  attempts: number;
  // Undefined while a call is under way.
  repeatAt: number | undefined;
}

/** Hits that this process may spend. */
interface Slice {
  readonly reservation: Reservation;
  // From an instant before that of the server, so the slice ends no later than there.
  readonly begin: number;
  readonly renewAt: number;
  readonly until: number;
  left: number;
  // Whether little is left, or a check did not fit.
  isLow: boolean;
}

/** The state of one key. */
class SliceKey {
  slice: Slice | undefined;
  isReserving = true;
  // Nothing is reserved until this instant.
  pausedUntil: number | undefined;
  // Those that are under way or wait to be repeated.
  ends: SliceEnd[] = [];

  constructor(
    readonly request: ParsedRequest,
    // When the last reservation was sent.
    public begin: number,
  ) {}

  /** Whether no call is under way and no pause goes on. One call at a time bounds them. */
  get isIdle(): boolean {
    return !this.isReserving && this.pausedUntil === undefined && this.ends.length === 0;
  }

  end(reservation: Reservation, spent: number | undefined, unspent: number, actions: SliceActions): void {
    const end = { reservation, spent, unspent, attempts: 0, repeatAt: undefined };
    this.ends.push(end);
    actions.ends.push(end);
  }
}

export class SliceTable {
  readonly #numbers: SliceNumbers;
  readonly #keys = new Map<string, SliceKey>();
  #closed = false;

  constructor(numbers: SliceNumbers) {
    this.#numbers = numbers;
  }

  /** The number of keys with a state. */
  get size(): number {
    return this.#keys.size;
  }

  /** What is reserved for a key. */
  requestOf(key: string): ParsedRequest | undefined {
    return this.#keys.get(key)?.request;
  }

  /** Whether a request may be spent from slices. */
  serves({ hits, requestId, descriptors }: ParsedRequest): boolean {
    const isCommon = descriptors.every((each) => each.hits === undefined && each.onExpiry === undefined);
    return hits <= this.#numbers.hits && requestId === "" && isCommon;
  }

  /** The decision of a slice. Without one, the server decides. */
  check(request: ParsedRequest, now: number): { decision: Decision | undefined; actions: SliceActions } {
    const actions = this.due(request.key, now);
    const known = this.#keys.get(request.key);
    if (known === undefined && !this.#closed && this.#keys.size < this.#numbers.keysMax) {
      this.#keys.set(request.key, new SliceKey(request, now));
      actions.reserve = true;
    }
    const slice = known?.slice;
    if (known === undefined || slice === undefined) return { decision: undefined, actions };
    const fits = request.hits <= slice.left;
    if (fits) slice.left -= request.hits;
    slice.isLow ||= !fits || slice.left <= Math.floor(this.#numbers.hits / 4);
    this.#renew(known, slice, now, actions);
    if (!fits) return { decision: undefined, actions };
    const reserved = after(slice.reservation.decision, "prepaid", now - slice.begin);
    const limits = reserved.limits.map((limit) => ({ ...limit, remaining: limit.remaining + slice.left }));
    return { decision: { ...reserved, limits }, actions };
  }

  /** Takes the answer to a reservation; undefined if the request is invalid. */
  reserved(key: string, reservation: Reservation | undefined, now: number): SliceActions {
    const actions = nothing();
    const known = this.#known(key);
    known.isReserving = false;
    const lasts = this.#lasts(reservation);
    if (reservation !== undefined && lasts >= SLICE_TIME_MIN_MS && !this.#closed) {
      this.#settle(known, actions);
      const { begin } = known;
      const times = { begin, renewAt: begin + lasts - lasts / 4, until: begin + lasts };
      known.slice = { reservation, ...times, left: this.#numbers.hits, isLow: false };
    } else {
      const isHeld = reservation?.decision.source === "server";
      // Without an answer, it is not known whether hits are held.
      if (reservation?.id) known.end(reservation, undefined, isHeld ? this.#numbers.hits : 0, actions);
      const retryAfterMs = reservation?.decision.retryAfterMs || REFUSED_PAUSE_MAX_MS;
      known.pausedUntil = now + Math.min(retryAfterMs, REFUSED_PAUSE_MAX_MS);
    }
    this.#advance(key, now, actions);
    return actions;
  }

  /** Takes the answer to the end of a slice; an error without one. */
  ended(key: string, end: SliceEnd, error: unknown, now: number): SliceActions {
    const actions = nothing();
    const known = this.#known(key);
    const pause = error instanceof NoAnswerError ? END_PAUSES_MS[end.attempts] : undefined;
    if (pause !== undefined) {
      end.repeatAt = now + pause;
      end.attempts += 1;
    } else {
      known.ends = known.ends.filter((each) => each !== end);
      if (error !== undefined) actions.lost = end.unspent;
    }
    this.#advance(key, now, actions);
    return actions;
  }

  /** Ends all slices. */
  close(now: number): Map<string, SliceActions> {
    this.#closed = true;
    const all = new Map<string, SliceActions>();
    for (const [key, known] of this.#keys) {
      const actions = nothing();
      this.#settle(known, actions);
      this.#advance(key, now, actions);
      all.set(key, actions);
    }
    return all;
  }

  /** Does what is due at this instant. */
  due(key: string, now: number): SliceActions {
    const actions = nothing();
    this.#advance(key, now, actions);
    return actions;
  }

  /** The next instant after `now` at which something is due. */
  nextDue(key: string, now: number): number | undefined {
    const known = this.#keys.get(key);
    const { slice, pausedUntil, ends = [] } = known ?? {};
    const instants = [pausedUntil, slice?.renewAt, slice?.until, ...ends.map(({ repeatAt }) => repeatAt)];
    const later = instants.filter((at) => at !== undefined && at > now) as number[];
    return later.length > 0 ? Math.min(...later) : undefined;
  }

  // Does what is due, and forgets a key of which nothing is left.
  #advance(key: string, now: number, actions: SliceActions): void {
    const known = this.#keys.get(key);
    if (known === undefined) return;
    for (const end of known.ends) {
      if (end.repeatAt === undefined || now < end.repeatAt) continue;
      end.repeatAt = undefined;
      actions.ends.push(end);
    }
    if (this.#closed || now >= (known.pausedUntil ?? now)) known.pausedUntil = undefined;
    const { slice } = known;
    if (slice !== undefined) {
      const isUnused = slice.left === this.#numbers.hits;
      if (now >= slice.until || (isUnused && now >= slice.renewAt)) this.#settle(known, actions);
      else this.#renew(known, slice, now, actions);
    }
    if (known.slice === undefined && known.isIdle) this.#keys.delete(key);
  }

  #renew(known: SliceKey, { isLow, renewAt }: Slice, now: number, actions: SliceActions): void {
    if (!known.isIdle || (!isLow && now < renewAt)) return;
    known.isReserving = true;
    known.begin = now;
    actions.reserve = true;
  }

  #settle(known: SliceKey, actions: SliceActions): void {
    const { slice } = known;
    if (slice === undefined) return;
    known.slice = undefined;
    known.end(slice.reservation, this.#numbers.hits - slice.left, slice.left, actions);
  }

  // The time for which a reservation may be spent; 0 if it may not.
  #lasts(reservation: Reservation | undefined): number {
    if (reservation === undefined || reservation.id === "") return 0;
    const { source, delayMs, limits } = reservation.decision;
    // A turn in a queue cannot be spent later.
    if (source !== "server" || delayMs > 0) return 0;
    // Hits of a window that has ended must not be spent in the next one.
    return Math.min(this.#numbers.ttlMs, ...limits.map(({ resetAfterMs }) => resetAfterMs));
  }

  #known(key: string): SliceKey {
    const known = this.#keys.get(key);
    // A key is kept while a call is under way.
    if (known === undefined) throw Error("the key has no slice");
    return known;
  }
}

function nothing(): SliceActions {
  return { reserve: false, ends: [], lost: 0 };
}
