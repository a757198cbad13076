// A plugin for Fastify.

import type { FastifyPluginAsync, FastifyRequest } from "fastify";

import type { Checker } from "./checker.js";
import { decide, type Describe, headersOf, refusal } from "./http.js";

export type { Describe } from "./http.js";

/** The options of the plugin. */
export interface RateLimitOptions {
  /** The client, or slices of a limit. */
  readonly checker: Checker;
  readonly describe: Describe<FastifyRequest>;
}

/**
 * Limits requests before their bodies are read: a denied one is answered with status 429, or 503 if the server gave no
 * answer, and `Retry-After`. All responses to limited requests have `RateLimit-Limit`, `RateLimit-Remaining` and
 * `RateLimit-Reset`. An invalid description is passed to the error handler.
 */
export const rateLimit: FastifyPluginAsync<RateLimitOptions> = async (app, { checker, describe }) => {
  app.addHook("onRequest", async (request, reply) => {
    const decision = await decide(checker, describe, request);
    if (decision === undefined) return;
    if (!decision.allowed) {
      const { status, headers, body } = refusal(decision, request.headers.accept);
      return reply.code(status).headers(headers).send(body);
    }
    reply.headers(headersOf(decision));
  });
};

// As with the package fastify-plugin: the hook applies to the routes beside the plugin, not only to those inside.
Object.assign(rateLimit, {
  [Symbol.for("skip-override")]: true,
  [Symbol.for("fastify.display-name")]: "tollgate",
});
