// What middleware for HTTP servers has in common.

import { STATUS_CODES } from "node:http";
import { setTimeout as wait } from "node:timers/promises";

import type { Checker } from "./checker.js";
import { type Decision, tightest } from "./decision.js";
import type { Request } from "./request.js";

const PROBLEM = "application/problem+json";

/** The request of an HTTP request; without one it is not limited. */
export type Describe<HttpRequest> = (request: HttpRequest) => Request | undefined | Promise<Request | undefined>;

/** The decision on an HTTP request once it may go on; undefined if it is not limited. */
export async function decide<HttpRequest>(
  checker: Checker,
  describe: Describe<HttpRequest>,
  request: HttpRequest,
): Promise<Decision | undefined> {
  const limited = await describe(request);
  if (limited === undefined) return undefined;
  const decision = await checker.check(limited);
  if (decision.allowed && decision.delayMs > 0) await wait(Math.ceil(decision.delayMs));
  return decision;
}

/** The response to a denied request. */
export interface Refusal {
  readonly status: number;
  readonly headers: Record<string, string>;
  readonly body: string;
}

/**
 * The response to a denied request: 429, and `Retry-After` if the same request passes later; 503, and `Retry-After` of
 * a second, if the decision is the default one. The body says why, as a text, or as a problem (RFC 9457) if the header
 * `accept` of the request has its type.
 */
export function refusal(decision: Decision, accept = ""): Refusal {
  const noAnswer = decision.source === "default";
  const waitMs = noAnswer ? 1_000 : decision.retryAfterMs;
  const status = noAnswer ? 503 : 429;
  const detail = noAnswer ? "the rate limiter gave no answer" : decision.neverBecause || "rate limit exceeded";
  const isProblem = accept.toLowerCase().includes(PROBLEM);
  const headers = {
    ...headersOf(decision),
    ...(waitMs && { "Retry-After": seconds(waitMs) }),
    "Content-Type": isProblem ? PROBLEM : "text/plain; charset=utf-8",
  };
  const body = isProblem ? JSON.stringify({ title: STATUS_CODES[status], status, detail }) : detail;
  return { status, headers, body };
}

/** The headers of the response to a request with a limit: the tightest one. */
export function headersOf(decision: Decision): Record<string, string> {
  const headers: Record<string, string> = {};
  const limit = tightest(decision);
  if (limit) {
    headers["RateLimit-Limit"] = String(limit.requestsPerUnit);
    headers["RateLimit-Remaining"] = String(limit.remaining);
    // A request that never passes waits for nothing.
    if (!decision.neverBecause) headers["RateLimit-Reset"] = seconds(limit.resetAfterMs);
  }
  return headers;
}

// Whole seconds, rounded up: a caller that waits for them has not waited too short.
function seconds(ms: number): string {
  return String(Math.ceil(ms / 1_000));
}
