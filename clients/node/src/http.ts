// What middleware for HTTP servers has in common.

import { setTimeout as wait } from "node:timers/promises";

import { type Decision, tightest } from "./decision.js";
import type { Checker, Descriptor } from "./request.js";

/** The status of a refused request. */
export const TOO_MANY_REQUESTS = 429;

/** What an HTTP request asks of the limiter. */
export interface Question {
  readonly domain: string;
  readonly descriptors: readonly Descriptor[];
  /** By default 1. */
  readonly hits?: number | undefined;
}

/** What a request asks; a request for which it returns undefined is not limited. */
export type QuestionOf<Request> = (request: Request) => Question | undefined | Promise<Question | undefined>;

/** The decision on an HTTP request once it may go on; undefined if it is not limited. */
export async function decide<Request>(
  checker: Checker,
  questionOf: QuestionOf<Request>,
  request: Request,
): Promise<Decision | undefined> {
  const question = await questionOf(request);
  if (question === undefined) return undefined;
  const decision = await checker.check(question.domain, question.descriptors, question.hits);
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
  if (!decision.allowed && decision.retryAfterMs !== undefined) headers["Retry-After"] = seconds(decision.retryAfterMs);
  return headers;
}

// Whole seconds, rounded up: a caller that waits for them has not waited too short.
function seconds(ms: number): string {
  return String(Math.ceil(ms / 1_000));
}
