// What decides the requests of a service.

import type { Decision } from "./decision.js";
import type { Request } from "./request.js";

/** Decides requests: a client, or slices of a limit. Middleware takes either. */
export interface Checker {
  /** Charges the hits of a request if it passes. */
  check(request: Request): Promise<Decision>;
}
