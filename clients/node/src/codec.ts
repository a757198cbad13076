// Requests and answers as messages of `tollgate.v1`.

import { status } from "@grpc/grpc-js";

import type { Decision, LimitStatus } from "./decision.js";
import { InvalidRequestError, NoAnswerError } from "./errors.js";
import type { Request, Unit } from "./request.js";
import { type HoldTerms, type Outcome, type Reservation, type Settlement, termsOf } from "./reservation.js";

export interface WireRequest {
  domain: string;
  descriptors: {
    entries: { key: string; value: string }[];
    limit?: { requestsPerUnit: number; unit: string };
    hits?: number;
  }[];
  hits: number;
  requestId?: string;
}

export interface WireAnswer {
  verdict: "UNDECIDED" | "ALLOWED" | "DENIED";
  delay: Duration | null;
  retryAfter: Duration | null;
  limits: WireLimitStatus[];
  degraded: boolean;
  error: { code: number; message: string } | null;
}

interface WireLimitStatus {
  descriptorIndex: number;
  rule: string;
  requestsPerUnit: number;
  unit: string;
  remaining: number;
  resetAfter: Duration | null;
  retryAfter: Duration | null;
  refused: boolean;
  refusedInShadow: boolean;
  refusedByCandidate: boolean;
  degraded: boolean;
}

export interface WireReserveResponse {
  answer: WireAnswer | null;
  reservationId: string;
}

export interface WireSettlement {
  limits: {
    descriptorIndex: number;
    rule: string;
    outcome: string;
    reserved: number;
    notCharged: number;
    remaining: number;
    resetAfter: Duration | null;
  }[];
  unknown: boolean;
}

interface Duration {
  seconds: number;
  nanos: number;
}

export function encode({ domain, descriptors, hits, requestId }: Request): WireRequest {
  return {
    domain,
    descriptors: descriptors.map(({ entries, limit, hits: own }) => ({
      entries: entries.map(([key, value]) => ({ key, value })),
      ...(limit && { limit: { requestsPerUnit: limit.requestsPerUnit, unit: limit.unit.toUpperCase() } }),
      ...(own !== undefined && { hits: own }),
    })),
    hits,
    ...(requestId !== undefined && { requestId }),
  };
}

export function encodeReserve(request: Request, terms: HoldTerms, reservationId: string) {
  const { domain, descriptors, hits: amount } = encode(request);
  const { ttlMs, onExpiry } = termsOf(terms);
  const ttl = { seconds: Math.floor(ttlMs / 1_000), nanos: (ttlMs % 1_000) * 1e6 };
  return { domain, descriptors, amount, ttl, reservationId, onExpiry: onExpiry.toUpperCase() };
}

/** The message that ends a reservation, without the hits that were used. */
export function encodeEnd({ request, id: reservationId }: Reservation) {
  const { domain, descriptors } = encode(request);
  return { domain, descriptors, reservationId };
}

export function decodeSettlement({ limits, unknown }: WireSettlement): Settlement {
  return {
    limits: limits.map(({ descriptorIndex: descriptor, outcome, resetAfter, ...limit }) => ({
      descriptor,
      ...limit,
      outcome: outcome.toLowerCase() as Outcome,
      resetAfterMs: milliseconds(resetAfter) ?? 0,
    })),
    unknown,
  };
}

/** The decision in an answer, or the error of a request that was not decided. */
export function decode(answer: WireAnswer): Decision | InvalidRequestError | NoAnswerError {
  const { verdict, delay, retryAfter, limits, degraded, error } = answer;
  if (verdict === "UNDECIDED") return errorOf(error?.code ?? status.UNKNOWN, error?.message ?? "no verdict");
  return {
    allowed: verdict === "ALLOWED",
    source: "server",
    delayMs: milliseconds(delay) ?? 0,
    retryAfterMs: milliseconds(retryAfter),
    limits: limits.map(decodeLimit),
    degraded,
    noAnswer: undefined,
  };
}

/** Why there is no answer. An invalid request is the only error that the caller can mend. */
export function errorOf(code: number, message: string): InvalidRequestError | NoAnswerError {
  if (code === status.INVALID_ARGUMENT) return new InvalidRequestError(message);
  return new NoAnswerError(status[code] ?? "UNKNOWN", message);
}

function decodeLimit({ descriptorIndex, unit, resetAfter, retryAfter, ...limit }: WireLimitStatus): LimitStatus {
  return {
    ...limit,
    descriptor: descriptorIndex,
    unit: unit === "UNKNOWN" ? undefined : (unit.toLowerCase() as Unit),
    resetAfterMs: milliseconds(resetAfter) ?? 0,
    retryAfterMs: milliseconds(retryAfter),
  };
}

function milliseconds(duration: Duration | null): number | undefined {
  return duration ? duration.seconds * 1_000 + duration.nanos / 1e6 : undefined;
}
