// Asks Tollgate whether a request may pass.

import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

// In a service, the directory of the copy of proto/.
const PROTO = fileURLToPath(new URL("../../proto", import.meta.url));

// Loaded once with the module; no code is generated.
const definition = protoLoader.loadSync("envoy/service/ratelimit/v3/rls.proto", {
  includeDirs: [PROTO],
  enums: String,
  longs: Number,
  defaults: true,
});
const { RateLimitService } = grpc.loadPackageDefinition(definition).envoy.service.ratelimit.v3;

const CHANNEL_OPTIONS = {
  // By default gRPC waits up to two minutes before it reconnects.
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1_000,
  // Detects a peer that disappeared without closing the connection.
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 2_000,
};

// What happens to a request if Tollgate gives no answer.
export const OnError = Object.freeze({
  // For protection against overload: an outage of the limiter must not be an outage of the service.
  ALLOW: "allow",
  // For limits that protect money, logins or secrets.
  DENY: "deny",
});

// Create one for the whole process: its connection multiplexes all calls and reconnects by itself.
export class Limiter {
  #client;
  #timeoutMs;
  #onError;

  // Does not wait for the connection, so a service can start while Tollgate is down.
  constructor({ to, timeoutMs, onError }) {
    this.#client = new RateLimitService(to, grpc.credentials.createInsecure(), CHANNEL_OPTIONS);
    this.#timeoutMs = timeoutMs;
    this.#onError = onError;
  }

  // Charges the hits to the descriptor with these entries: `[{ key, value }]`. Always resolves.
  ask({ domain, entries, hits = 1 }) {
    const request = { domain, descriptors: [{ entries }], hitsAddend: hits };
    // Without a deadline a silent peer would block the request.
    const deadline = Date.now() + this.#timeoutMs;
    return new Promise((resolve) => {
      this.#client.ShouldRateLimit(request, { deadline }, (noAnswer, answer) => {
        resolve(noAnswer ? { allowed: this.#onError === OnError.ALLOW, noAnswer } : decisionOf(answer));
      });
    });
  }

  close() {
    this.#client.close();
  }
}

// What to do with a request: `remaining` is what is left of the tightest limit, undefined if none applies;
// `retryAfterSeconds` is the time after which a refused request would pass.
function decisionOf({ overallCode, statuses }) {
  const allowed = overallCode !== "OVER_LIMIT";
  const limited = statuses.filter((status) => status.currentLimit).map((status) => status.limitRemaining);
  const remaining = limited.length ? Math.min(...limited) : undefined;
  const refusing = allowed ? [] : statuses.filter((status) => status.code === "OVER_LIMIT");
  const waits = refusing.map(({ durationUntilReset: wait }) => (wait ? wait.seconds + wait.nanos / 1e9 : 0));
  // If several limits refuse, the longest wait applies.
  return { allowed, remaining, retryAfterSeconds: Math.max(0, ...waits) };
}
