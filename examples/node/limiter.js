// Asks Tollgate whether a request may pass.

import { fileURLToPath } from "node:url";
import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";

// In a service, the folder that you keep the copy of proto/ in.
const PROTO = fileURLToPath(new URL("../../proto", import.meta.url));

// Read once, when the module is loaded; nothing is generated.
const definition = protoLoader.loadSync("envoy/service/ratelimit/v3/rls.proto", {
  includeDirs: [PROTO],
  enums: String,
  longs: Number,
  defaults: true,
});
const { RateLimitService } = grpc.loadPackageDefinition(definition).envoy.service.ratelimit.v3;

const CHANNEL_OPTIONS = {
  // Left alone, gRPC waits up to two minutes before it tries again to connect.
  "grpc.initial_reconnect_backoff_ms": 100,
  "grpc.max_reconnect_backoff_ms": 1_000,
  // A peer that vanished without a word is noticed by this.
  "grpc.keepalive_time_ms": 10_000,
  "grpc.keepalive_timeout_ms": 2_000,
};

// What happens to a request when Tollgate gives no answer.
export const OnError = Object.freeze({
  // For protection against overload: losing the limiter must not mean losing the service.
  ALLOW: "allow",
  // For limits that guard money, logins or secrets.
  DENY: "deny",
});

// Make one for the whole process: its connection carries all calls at once and comes back by itself.
export class Limiter {
  #client;
  #timeoutMs;
  #onError;

  // Does not wait for the connection, so a service starts while Tollgate is down.
  constructor({ to, timeoutMs, onError }) {
    this.#client = new RateLimitService(to, grpc.credentials.createInsecure(), CHANNEL_OPTIONS);
    this.#timeoutMs = timeoutMs;
    this.#onError = onError;
  }

  // Charges the hits to the descriptor that the entries make: `[{ key, value }]`. Always resolves.
  ask({ domain, entries, hits = 1 }) {
    const request = { domain, descriptors: [{ entries }], hitsAddend: hits };
    // Without a deadline a silent peer would hold the request for ever.
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

// What to do with a request: `remaining` is what is left of the tightest limit, undefined where none applies;
// `retryAfterSeconds` is the wait after which a refused request would pass.
function decisionOf({ overallCode, statuses }) {
  const allowed = overallCode !== "OVER_LIMIT";
  const limited = statuses.filter((status) => status.currentLimit).map((status) => status.limitRemaining);
  const remaining = limited.length ? Math.min(...limited) : undefined;
  const refusing = allowed ? [] : statuses.filter((status) => status.code === "OVER_LIMIT");
  const waits = refusing.map(({ durationUntilReset: wait }) => (wait ? wait.seconds + wait.nanos / 1e9 : 0));
  // Where several limits refuse, the longest wait counts.
  return { allowed, remaining, retryAfterSeconds: Math.max(0, ...waits) };
}
