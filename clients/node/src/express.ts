// Middleware for Express, and for other servers with functions of request, response and next.

import type { IncomingMessage, ServerResponse } from "node:http";

import type { Checker } from "./checker.js";
import { decide, type Describe, headersOf, refusal } from "./http.js";

export type { Describe } from "./http.js";

/**
 * Limits requests: a denied one is answered with status 429, or 503 if the server gave no answer, and `Retry-After`.
 * All responses to limited requests have `RateLimit-Limit`, `RateLimit-Remaining` and `RateLimit-Reset`. The error
 * handler gets an invalid description.
 */
export function rateLimit<Request extends IncomingMessage>(
  checker: Checker,
  describe: Describe<Request>,
): (request: Request, response: ServerResponse, next: (error?: unknown) => void) => void {
  return (request, response, next) => {
    decide(checker, describe, request).then((decision) => {
      if (decision === undefined) return next();
      if (!decision.allowed) {
        const { status, headers, body } = refusal(decision, request.headers.accept);
        return response.writeHead(status, headers).end(body);
      }
      for (const [name, value] of Object.entries(headersOf(decision))) response.setHeader(name, value);
      next();
    }, next);
  };
}
