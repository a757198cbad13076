// Middleware for Express, and for other servers with functions of request, response and next.

import type { IncomingMessage, ServerResponse } from "node:http";

import type { Checker } from "./checker.js";
import { decide, type Describe, headersOf, TOO_MANY_REQUESTS } from "./http.js";

export type { Describe } from "./http.js";

/**
 * Limits requests: a refused one is answered with status 429 and `Retry-After`. All responses to limited requests have
 * `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`. The error handler gets an invalid description.
 */
export function rateLimit<Request extends IncomingMessage>(
  checker: Checker,
  describe: Describe<Request>,
): (request: Request, response: ServerResponse, next: (error?: unknown) => void) => void {
  return (request, response, next) => {
    decide(checker, describe, request).then((decision) => {
      if (decision === undefined) return next();
      for (const [name, value] of Object.entries(headersOf(decision))) response.setHeader(name, value);
      if (decision.allowed) return next();
      response.statusCode = TOO_MANY_REQUESTS;
      response.end();
    }, next);
  };
}
