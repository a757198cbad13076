// What middleware for HTTP servers has in common.

import { setTimeout as wait } from "node:timers/promises";

import type { Checker } from "./checker.js";
import { type Decision, tightest } from "./decision.js";
import type { Request } from "./request.js";

/** The status of a refused request. */
export const TOO_MANY_REQUESTS = 429;

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

/** The headers of the response: the tightest limit, and when a refused request would pass. */
export function headersOf(decision: Decision): Record<string, string> {
  const headers: Record<string, string> = {};
  const limit = tightest(decision);
  if (limit) {
    headers["RateLimit-Limit"] = String(limit.requestsPerUnit);
    headers["RateLimit-Remaining"] = String(limit.remaining);
    headers["RateLimit-Reset"] = seconds(limit.resetAfterMs);
  }
  if (!decision.allowed && decision.retryAfterMs) headers["Retry-After"] = seconds(decision.retryAfterMs);
  return headers;
}

// Whole seconds, rounded up: a caller that waits for them has not waited too short.
function seconds(ms: number): string {
  return String(Math.ceil(ms / 1_000));
}
