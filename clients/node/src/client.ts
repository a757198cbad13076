// The client of a service: checks, peeks, refunds and reservations.

import { randomBytes } from "node:crypto";

import { Batcher } from "./batcher.js";
import type { Checker } from "./checker.js";
import {
  answersTo,
  decode,
  decodeOwnLimit,
  decodeResult,
  decodeSettlement,
  encodeCounted,
  encodeEnd,
  encodeKeys,
  encodeLimits,
  encodePeek,
  encodePrefix,
  encodeReserve,
  type WireAnswer,
  type WireLimitResult,
  type WireOwnLimit,
  type WireSettlement,
} from "./codec.js";
import { Connection, type OwnLimitMethod, type ReservationMethod, type TlsOptions } from "./connection.js";
import { type Decision, defaultDecision } from "./decision.js";
import { DenyCache } from "./deny_cache.js";
import { NoAnswerError, QueueFullError } from "./errors.js";
import type { Metrics, Outcome } from "./metrics.js";
import { numberOptions } from "./options.js";
import type { LimitResult, OwnLimit } from "./own_limit.js";
import { type Descriptor, ParsedRequest, type Request, whole } from "./request.js";
import type { HitsByIndex, Reservation, Settlement, Terms } from "./reservation.js";

/** The settings of a client. */
export interface ClientOptions {
  /** TLS with these certificates; `{}` for those of Node. Without it, the connection is plaintext. */
  readonly tls?: TlsOptions | undefined;
  /** The time that a request waits for its answer, in milliseconds: 1 to 60,000, by default 100. */
  readonly timeoutMs?: number | undefined;
  /**
   * The decision without an answer. `allow`, the default, suits protection against overload; `deny` suits limits that
   * protect money, logins or secrets.
   */
  readonly onNoAnswer?: "allow" | "deny" | undefined;
  /** The maximum number of checks of a call: 1 to 256, by default 256. At most `api.max_requests` of the server. */
  readonly batchMax?: number | undefined;
  /** The maximum number of calls with checks under way: 1 to 100, by default 2. Further checks wait and batch. */
  readonly callsMax?: number | undefined;
  /** The maximum number of checks that wait for a call, by default 10,000. Further ones get the default decision. */
  readonly queueMax?: number | undefined;
  /** The maximum number of keys in the deny cache, by default 10,000. 0 turns it off. */
  readonly denyCacheKeys?: number | undefined;
  /** The longest time for which the deny cache refuses a key, in milliseconds: 1 to 86,400,000, by default 1,000. */
  readonly denyCacheMaxMs?: number | undefined;
  /** The admin token of the server, which is sent with the calls of limits of their own only. */
  readonly adminToken?: string | undefined;
  readonly metrics?: Metrics | undefined;
}

/** The ranges of the options that are numbers. */
export const CLIENT_NUMBERS = {
  timeoutMs: { min: 1, max: 60_000, usual: 100 },
  batchMax: { min: 1, max: 256, usual: 256 },
  callsMax: { min: 1, max: 100, usual: 2 },
  queueMax: { min: 1, max: 1_000_000, usual: 10_000 },
  denyCacheKeys: { min: 0, max: 1_000_000, usual: 10_000 },
  denyCacheMaxMs: { min: 1, max: 86_400_000, usual: 1_000 },
};

/** A client of the servers of one name. Create one for the whole process. */
export class Client implements Checker {
  /** What is called for each check and each batch. */
  readonly metrics: Metrics | undefined;
  readonly #connection: Connection;
  readonly #batcher: Batcher;
  readonly #denyCache: DenyCache;
  readonly #timeoutMs: number;
  readonly #allowsByDefault: boolean;
  readonly #adminToken: string;

  /**
   * Connects in the background, so a service can start while the server is down. `target` is a gRPC name: `host:port`,
   * `dns:///host:port`, `ipv4:address:port,address:port` or `unix:path`.
   */
  constructor(target: string, options: ClientOptions = {}) {
    const { onNoAnswer = "allow", adminToken = "", metrics, tls } = options;
    const numbers = numberOptions(CLIENT_NUMBERS, options);
    if (!["allow", "deny"].includes(onNoAnswer)) throw new RangeError("onNoAnswer: not `allow` or `deny`");
    // As a token has that was read from a file with its line break.
    if (!/^[!-~]*$/.test(adminToken)) throw new RangeError("adminToken: not visible ASCII");
    this.#adminToken = adminToken;
    this.metrics = metrics;
    this.#timeoutMs = numbers.timeoutMs;
    this.#allowsByDefault = onNoAnswer === "allow";
    this.#denyCache = new DenyCache(numbers.denyCacheKeys, numbers.denyCacheMaxMs);
    const connection = new Connection(target, tls);
    this.#connection = connection;
    this.#batcher = new Batcher(
      (requests, timeoutMs) => connection.call("Check", requests, timeoutMs),
      numbers,
      (size) => metrics?.sent(size),
    );
  }

  /**
   * Charges the hits of a request if it passes. The server decides each check with a `requestId`.
   *
   * @throws InvalidRequestError if the request is invalid; there is no default decision for it
   */
  async check(request: Request): Promise<Decision> {
    const begin = performance.now();
    let outcome: Outcome = "failed";
    try {
      const decision = await this.#check(request, begin);
      outcome = outcomeOf(decision);
      return decision;
    } finally {
      this.metrics?.checked(outcome, performance.now() - begin);
    }
  }

  /**
   * Charges nothing. The request is denied if a limit lets nothing pass now.
   *
   * @throws InvalidRequestError if the request is invalid
   */
  async peek(request: Request): Promise<Decision> {
    const message = encodePeek(new ParsedRequest(request));
    return this.#orDefault(() => this.#only("Peek", message));
  }

  /**
   * Gives the hits of an earlier check back. The server never denies it, and there is no default for it.
   *
   * @throws InvalidRequestError if the request is invalid
   * @throws NoAnswerError if the server gives no answer
   */
  async refund(request: Request): Promise<Decision> {
    const parsed = new ParsedRequest(request);
    const message = encodeCounted(parsed);
    try {
      return await this.#only("Refund", message);
    } finally {
      // Also without an answer, because the server may have received it.
      this.#denyCache.refund(parsed.key, performance.now());
    }
  }

  /**
   * Holds the hits of a request, of all its limits or of none, until it is known how many are used. Without an answer,
   * the default decides.
   *
   * @throws InvalidRequestError if the request or the terms are invalid
   */
  async reserve(request: Request, terms: Terms = {}): Promise<Reservation> {
    const parsed = new ParsedRequest(request);
    // Chosen here, so that a reservation whose answer is lost can be settled.
    let id = randomBytes(16).toString("hex");
    let ended = false;
    const message = encodeReserve(parsed, terms, id);
    const decision = await this.#orDefault(async () => {
      type Response = { answer: WireAnswer | null; reservationId: string; ended: boolean };
      const response = await this.#connection.send<Response>("Reserve", message, this.#timeoutMs);
      const decided = decode(response.answer);
      ({ reservationId: id, ended } = response);
      return decided;
    });
    return { request: parsed, decision, id, ended };
  }

  /**
   * Ends a reservation at the hits that were used, for each descriptor without hits of its own: gives the rest back, or
   * charges what is missing. `hits` of single descriptors, by their index, replace those with which they were reserved,
   * and `actual`. If nothing is held, it does nothing.
   *
   * @throws InvalidRequestError if a number or an index is invalid
   * @throws NoAnswerError if the server gives no answer; repeat the call, which then answers as the first one
   */
  async settle(reservation: Reservation, actual: number, hits: HitsByIndex = {}): Promise<Settlement> {
    return this.#end("Settle", reservation, { actual: whole(actual, "actual") }, hits);
  }

  /** Ends a reservation of which nothing was used. Errors are those of `settle`. */
  async cancel(reservation: Reservation): Promise<Settlement> {
    return this.#end("Cancel", reservation, {});
  }

  /**
   * Gives keys limits of their own, in place of the numbers of their rules. If one is invalid, none is set. The results
   * are in the order of the limits. A dry run only checks them.
   *
   * @throws InvalidRequestError if a limit cannot be sent
   * @throws NoAnswerError if the server gives no answer, also if the token is wrong; limits may be set or not
   */
  async setLimits(limits: readonly OwnLimit[], { dryRun = false } = {}): Promise<LimitResult[]> {
    return this.#changeLimits("SetLimits", encodeLimits(limits, dryRun), limits.length);
  }

  /** Reads the limits of their own of keys. Errors are those of `setLimits`. */
  async getLimits(domain: string, keys: readonly Descriptor[]): Promise<LimitResult[]> {
    const message = encodeKeys(new ParsedRequest({ domain, descriptors: keys }));
    return this.#limitResults("GetLimits", message, keys.length);
  }

  /** Removes the limits of their own of keys, so that their rules apply again. Errors are those of `setLimits`. */
  async clearLimits(domain: string, keys: readonly Descriptor[]): Promise<LimitResult[]> {
    const message = encodeKeys(new ParsedRequest({ domain, descriptors: keys }));
    return this.#changeLimits("ClearLimits", message, keys.length);
  }

  /**
   * The limits of their own of a domain, by default of all, whose keys begin with these entries, read page by page.
   * In a cluster they are those of all replicas. Errors are those of `setLimits`.
   */
  async *listLimits(domain = "", prefix: Descriptor["entries"] = []): AsyncGenerator<OwnLimit, void, undefined> {
    const message = encodePrefix(domain, prefix);
    let pageToken = "";
    do {
      type Page = { limits: WireOwnLimit[]; nextPageToken: string };
      const call = { ...message, pageToken };
      const page = await this.#connection.send<Page>("ListLimits", call, this.#timeoutMs, this.#adminToken);
      yield* page.limits.map(decodeOwnLimit);
      pageToken = page.nextPageToken;
    } while (pageToken !== "");
  }

  /** Closes the connection. Checks under way, and later ones, are answered as without a server. */
  close(): void {
    this.#batcher.close();
    this.#connection.close();
  }

  async #check(request: Request, begin: number): Promise<Decision> {
    const parsed = new ParsedRequest(request);
    const { key, requestId } = parsed;
    const hits = parsed.hitsOfEach();
    const known = requestId === "" ? this.#denyCache.denied(key, hits, begin) : undefined;
    if (known) return known;
    const message = encodeCounted(parsed);
    const end = this.#denyCache.begin(key);
    try {
      return await this.#orDefault(async () => {
        const { answer, sent } = await this.#batcher.check(message);
        const decision = decode(answer);
        if (!decision.allowed) this.#denyCache.refuse(key, hits, decision, sent);
        return decision;
      });
    } finally {
      end();
    }
  }

  async #end(
    method: ReservationMethod,
    reservation: Reservation,
    used: { actual?: number },
    hits?: HitsByIndex,
  ): Promise<Settlement> {
    if (reservation.id === "") return { limits: [], unknown: false };
    const parsed = new ParsedRequest(reservation.request);
    const message = { ...encodeEnd(parsed, reservation.id, hits), ...used };
    try {
      return decodeSettlement(await this.#connection.send<WireSettlement>(method, message, this.#timeoutMs));
    } finally {
      // Also without an answer, because the server may have received it.
      this.#denyCache.refund(parsed.key, performance.now());
    }
  }

  async #changeLimits(method: OwnLimitMethod, message: object, keys: number): Promise<LimitResult[]> {
    try {
      return await this.#limitResults(method, message, keys);
    } finally {
      // Also without an answer, because the server may have changed limits.
      this.#denyCache.clear(performance.now());
    }
  }

  async #limitResults(method: OwnLimitMethod, message: object, keys: number): Promise<LimitResult[]> {
    type Response = { results: WireLimitResult[] };
    const { results } = await this.#connection.send<Response>(method, message, this.#timeoutMs, this.#adminToken);
    return answersTo(keys, results).map(decodeResult);
  }

  // The decision of a call with one request.
  async #only(method: "Peek" | "Refund", message: ReturnType<typeof encodePeek>): Promise<Decision> {
    const [answer] = answersTo(1, await this.#connection.call(method, [message], this.#timeoutMs));
    return decode(answer);
  }

  async #orDefault(decide: () => Promise<Decision>): Promise<Decision> {
    try {
      return await decide();
    } catch (error) {
      if (error instanceof NoAnswerError) return defaultDecision(this.#allowsByDefault, error);
      throw error;
    }
  }
}

function outcomeOf({ allowed, source, noAnswer }: Decision): Outcome {
  if (noAnswer) return noAnswer instanceof QueueFullError ? "queue_full" : "no_answer";
  if (source === "deny_cache") return "denied_locally";
  return allowed ? "allowed" : "denied";
}
