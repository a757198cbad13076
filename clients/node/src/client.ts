// The client of a service: checks, peeks, refunds and reservations.

import { randomUUID } from "node:crypto";

import {
  decode,
  decodeSettlement,
  encodeEnd,
  encodeReserve,
  type WireReserveResponse,
  type WireSettlement,
} from "./codec.js";
import { Connection, type HoldMethod, type Method, type TlsOptions } from "./connection.js";
import { type Decision, defaultDecision } from "./decision.js";
import { DenyCache } from "./deny_cache.js";
import { NoAnswerError } from "./errors.js";
import { Lane } from "./lane.js";
import type { Metrics } from "./metrics.js";
import { numberOption } from "./options.js";
import {
  type CheckOptions,
  type Descriptor,
  type Request,
  requestWithHits,
  requestWithoutHits,
  requireActual,
} from "./request.js";
import type { HoldTerms, Reservation, Settlement } from "./reservation.js";

/** The settings of a client. */
export interface ClientOptions {
  /** TLS with these certificates; `{}` for those of Node. Without it, the connection is plaintext. */
  readonly tls?: TlsOptions | undefined;
  /** The time that a request waits for its answer, in milliseconds: 1 to 60,000, by default 100. */
  readonly timeoutMs?: number | undefined;
  /**
   * The decision on checks and peeks without an answer. `allow`, the default, suits protection against overload;
   * `deny` suits limits that protect money, logins or secrets.
   */
  readonly onNoAnswer?: "allow" | "deny" | undefined;
  /** The maximum number of requests of a call: 1 to 256, by default 256. At most `api.max_requests` of the server. */
  readonly maxBatch?: number | undefined;
  /** The maximum number of calls of one method under way: 1 to 100, by default 2. Further requests wait and batch. */
  readonly maxCalls?: number | undefined;
  /** The maximum number of requests that wait for a call, by default 10,000. Further ones get the default decision. */
  readonly maxQueue?: number | undefined;
  /** The maximum number of keys in the deny cache, by default 10,000. 0 turns it off. */
  readonly denyCacheKeys?: number | undefined;
  /** The longest time for which the deny cache refuses a key, in milliseconds, by default 1,000. */
  readonly denyCacheMaxMs?: number | undefined;
  readonly metrics?: Metrics | undefined;
}

/** A client of the servers of one name. Create one for the whole process. */
export class Client {
  /** What is called for each check and each batch. */
  readonly metrics: Metrics | undefined;
  readonly #connection: Connection;
  readonly #checks: Lane;
  readonly #peeks: Lane;
  readonly #refunds: Lane;
  readonly #denyCache: DenyCache;
  readonly #timeoutMs: number;
  readonly #allowsByDefault: boolean;

  /**
   * Connects in the background, so a service can start while the server is down. `target` is a gRPC name: `host:port`,
   * `dns:///host:port`, `ipv4:address:port,address:port` or `unix:path`.
   */
  constructor(target: string, options: ClientOptions = {}) {
    const number = (name: keyof typeof NUMBER_OPTIONS) => numberOption(name, options[name], NUMBER_OPTIONS[name]);
    const { onNoAnswer = "allow", metrics } = options;
    if (!["allow", "deny"].includes(onNoAnswer)) throw new RangeError("onNoAnswer: not `allow` or `deny`");
    const bounds = {
      timeoutMs: number("timeoutMs"),
      maxBatch: number("maxBatch"),
      maxCalls: number("maxCalls"),
      maxQueue: number("maxQueue"),
    };
    this.#denyCache = new DenyCache(number("denyCacheKeys"), number("denyCacheMaxMs"));
    this.#timeoutMs = bounds.timeoutMs;
    this.#allowsByDefault = onNoAnswer === "allow";
    this.metrics = metrics;
    this.#connection = new Connection(target, options.tls);
    const lane = (method: Method, onBatch: (size: number) => void) =>
      new Lane((requests, timeoutMs) => this.#connection.call(method, requests, timeoutMs), bounds, onBatch);
    this.#checks = lane("Check", (size) => metrics?.batchSent(size));
    this.#peeks = lane("Peek", () => {});
    this.#refunds = lane("Refund", () => {});
  }

  /**
   * Charges `hits` to each descriptor if the request passes. The server decides each check with a `requestId`.
   *
   * @throws InvalidRequestError if the request is invalid; there is no default decision for it
   */
  async check(
    domain: string,
    descriptors: readonly Descriptor[],
    hits = 1,
    { requestId }: CheckOptions = {},
  ): Promise<Decision> {
    const begin = performance.now();
    const request = requestWithHits(domain, descriptors, hits, requestId);
    const known = requestId === undefined ? this.#denyCache.lookup(request, begin) : undefined;
    const decision = known ?? (await this.#checkByServer(request, begin));
    this.metrics?.checked(decision, performance.now() - begin);
    return decision;
  }

  /**
   * Charges nothing. The request is denied if a limit lets nothing pass now.
   *
   * @throws InvalidRequestError if the request is invalid
   */
  async peek(domain: string, descriptors: readonly Descriptor[]): Promise<Decision> {
    return this.#decide(this.#peeks, requestWithoutHits(domain, descriptors));
  }

  /**
   * Gives `hits` of each descriptor back. The server never denies it, and there is no default for it.
   *
   * @throws InvalidRequestError if the request is invalid
   * @throws NoAnswerError if the server gives no answer
   */
  async refund(domain: string, descriptors: readonly Descriptor[], hits = 1): Promise<Decision> {
    const request = requestWithHits(domain, descriptors, hits);
    try {
      return await this.#refunds.decide(request);
    } finally {
      // Also without an answer, because the server may have received it.
      this.#denyCache.refund(request, performance.now());
    }
  }

  /**
   * Holds `hits` of each descriptor, all of them or none, until it is known how many are used. Without an answer, the
   * default decides.
   *
   * @throws InvalidRequestError if the request or the terms are invalid
   */
  async reserve(
    domain: string,
    descriptors: readonly Descriptor[],
    hits = 1,
    terms: HoldTerms = {},
  ): Promise<Reservation> {
    const request = requestWithHits(domain, descriptors, hits);
    // Chosen here, so that a reservation whose answer is lost can be settled.
    const id = randomUUID();
    const message = encodeReserve(request, terms, id);
    try {
      const response = await this.#connection.send<WireReserveResponse>("Reserve", message, this.#timeoutMs);
      const decision = response.answer ? decode(response.answer) : new NoAnswerError("UNKNOWN", "no answer");
      if (decision instanceof Error) throw decision;
      return { request, decision, id: response.reservationId };
    } catch (error) {
      if (!(error instanceof NoAnswerError)) throw error;
      return { request, decision: defaultDecision(this.#allowsByDefault, error), id };
    }
  }

  /**
   * Ends a reservation at the hits that were used, for each descriptor without hits of its own: gives the rest back, or
   * charges what is missing. If nothing is held, it does nothing.
   *
   * @throws InvalidRequestError if the number is invalid
   * @throws NoAnswerError if the server gives no answer; repeat the call, which then answers as the first one
   */
  async settle(reservation: Reservation, actual: number): Promise<Settlement> {
    requireActual(actual);
    return this.#end("Settle", reservation, { actual });
  }

  /** Ends a reservation of which nothing was used. Errors are those of `settle`. */
  async cancel(reservation: Reservation): Promise<Settlement> {
    return this.#end("Cancel", reservation, {});
  }

  /** Closes the connection. Requests that wait, and later ones, are answered as without a server. */
  close(): void {
    for (const lane of [this.#checks, this.#peeks, this.#refunds]) lane.close();
    this.#connection.close();
  }

  async #end(method: HoldMethod, reservation: Reservation, used: { actual?: number }): Promise<Settlement> {
    if (reservation.id === "") return { limits: [], unknown: false };
    const message = { ...encodeEnd(reservation), ...used };
    try {
      return decodeSettlement(await this.#connection.send<WireSettlement>(method, message, this.#timeoutMs));
    } finally {
      // Also without an answer, because the server may have received it.
      this.#denyCache.refund(reservation.request, performance.now());
    }
  }

  async #checkByServer(request: Request, begin: number): Promise<Decision> {
    const end = this.#denyCache.begin(request);
    try {
      const decision = await this.#decide(this.#checks, request);
      // `begin` is before the decision of the server, so the refusal here does not last longer than that of the server.
      if (!decision.allowed && decision.source === "server") this.#denyCache.insert(request, decision, begin);
      return decision;
    } finally {
      end();
    }
  }

  async #decide(lane: Lane, request: Request): Promise<Decision> {
    try {
      return await lane.decide(request);
    } catch (error) {
      if (error instanceof NoAnswerError) return defaultDecision(this.#allowsByDefault, error);
      throw error;
    }
  }
}

const NUMBER_OPTIONS = {
  timeoutMs: { min: 1, max: 60_000, usual: 100 },
  maxBatch: { min: 1, max: 256, usual: 256 },
  maxCalls: { min: 1, max: 100, usual: 2 },
  maxQueue: { min: 1, max: 1_000_000, usual: 10_000 },
  denyCacheKeys: { min: 0, max: 1_000_000, usual: 10_000 },
  denyCacheMaxMs: { min: 0, max: 86_400_000, usual: 1_000 },
};
