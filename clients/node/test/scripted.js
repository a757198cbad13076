// The notation of clients/vectors, which clients/behaviour.md describes, and a server whose calls wait for a script.

import { readFileSync } from "node:fs";

import { loadPackageDefinition, Metadata, Server, ServerCredentials, status } from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { PROTO_DIRECTORY } from "tollgate-ratelimit-client";

/** The vectors of a file that Node can replay: a check cannot be canceled. */
export function vectorsOf(name) {
  const vectors = JSON.parse(readFileSync(new URL(`../../vectors/${name}.json`, import.meta.url), "utf8"));
  return vectors.filter(({ needs }) => needs !== "cancel");
}

/** The name of an option or a field in a vector, as Node has it. */
export const camelCase = (name) =>
  name.replace(/_(.)/g, (_match, letter) => letter.toUpperCase());

/** The options of a vector; the timeout is long unless it is given. */
export function optionsOf(options = {}) {
  const named = Object.entries(options).map(([name, value]) => [camelCase(name), value]);
  return { timeoutMs: 20_000, ...Object.fromEntries(named) };
}

/** The user of a request, which names its call. */
export const userOf = (request) => (typeof request === "string" ? request : request.user);

/** A request as the caller writes it. */
export function requestOf(request) {
  if (typeof request === "string") return requestOf({ user: request });
  const { user, pad = 0, descriptors = [], domain = "edge", hits, request_id: requestId } = request;
  const first = user === undefined ? [] : [{ entries: [["user", user + "x".repeat(pad)]] }];
  const further = descriptors.map(({ limit, on_expiry: onExpiry, ...each }) => ({
    ...each,
    onExpiry,
    ...(limit && { limit: { requestsPerUnit: limit[0], unit: limit[1] } }),
  }));
  return { domain, descriptors: [...first, ...further], hits, requestId };
}

/** A request as the server receives it. */
export function wireOf(request) {
  const { domain, descriptors, hits = 1, requestId = "" } = requestOf(request);
  const wire = descriptors.map(({ entries, limit = null, hits: own, onExpiry }) => ({
    entries: entries.map(([key, value]) => ({ key, value })),
    limit: limit && { requestsPerUnit: limit.requestsPerUnit, unit: limit.unit.toUpperCase() },
    ...(own !== undefined && { hits: own }),
    ...(onExpiry && { onExpiry: onExpiry.toUpperCase() }),
  }));
  return { domain, descriptors: wire, hits, id: "", requestId };
}

const durationOf = (ms) => (ms === undefined ? null : { seconds: Math.floor(ms / 1_000), nanos: (ms % 1_000) * 1e6 });

/** An answer as the server sends it. */
export function answerOf(answer) {
  if (typeof answer === "string") return answerOf({ verdict: answer });
  if (Array.isArray(answer)) {
    const [remaining, reset_after_ms] = answer;
    return answerOf({ verdict: "allowed", limits: [{ remaining, reset_after_ms }] });
  }
  const { verdict = "undecided", limits = [], error, delay_ms: delay, retry_after_ms: retryAfter } = answer;
  return {
    verdict: verdict.toUpperCase(),
    neverBecause: answer.never_because ?? "",
    delay: durationOf(delay),
    retryAfter: durationOf(retryAfter),
    limits: limits.map(({ requests_per_unit: requestsPerUnit = 0, remaining, refused = false, ...times }) => ({
      requestsPerUnit,
      unit: "MINUTE",
      remaining,
      refused,
      resetAfter: durationOf(times.reset_after_ms),
      retryAfter: durationOf(times.retry_after_ms),
    })),
    degraded: false,
    error: error ? { code: status[error[0]], message: error[1] } : null,
  };
}

/** A value without what is not expected of it: fields of objects, and further elements of lists. */
export function expectedOf(value, expected) {
  if (value === null || value === undefined || typeof expected !== "object" || expected === null) return value ?? null;
  if (Array.isArray(expected)) return expected.map((each, index) => expectedOf(value[index], each));
  return Object.fromEntries(Object.entries(expected).map(([name, each]) => [name, expectedOf(value[name], each)]));
}

/** A decision in the notation. */
export const describeDecision = ({ allowed, source, retryAfterMs, noAnswer, limits }) => ({
  allowed,
  source,
  retry_after_ms: retryAfterMs,
  reset_after_ms: limits[0]?.resetAfterMs,
  no_answer: noAnswer && [noAnswer.code, noAnswer.message],
});

const FILES = ["tollgate/v1/tollgate.proto", "google/rpc/status.proto", "google/rpc/error_details.proto"];
const definition = loadSync(FILES, {
  includeDirs: [PROTO_DIRECTORY],
  enums: String,
  longs: Number,
  defaults: true,
});
const { service } = loadPackageDefinition(definition).tollgate.v1.RateLimiter;

/**
 * Servers on the loopback: one for each of the addresses that is `server`. `next()` is their next call, with the number
 * of its `server`, `method`, `message`, whether it has a token, and `reply`.
 */
export async function startScripted(test, addresses = ["server"]) {
  const [calls, waiting] = [[], []];
  const handle = (server, method) => (call, callback) => {
    const reply = (step) => callback(...replyOf(method, call.request, step));
    const isAuthorized = call.metadata.get("authorization").length > 0;
    const received = { server, method, message: call.request, isAuthorized, reply };
    const next = waiting.shift();
    if (next) next(received);
    else calls.push(received);
  };
  const start = async (number) => {
    const server = new Server();
    const handlers = Object.keys(service).map((method) => [method, handle(number, method)]);
    server.addService(service, Object.fromEntries(handlers));
    const port = await new Promise((resolve, reject) => {
      const bound = (error, number) => (error ? reject(error) : resolve(number));
      server.bindAsync("127.0.0.1:0", ServerCredentials.createInsecure(), bound);
    });
    test.after(() => server.forceShutdown());
    return `127.0.0.1:${port}`;
  };
  const targets = await Promise.all(addresses.map((address, i) => (address === "server" ? start(i) : address)));
  const next = async () => calls.shift() ?? new Promise((resolve) => waiting.push(resolve));
  const servers = addresses.filter((each) => each === "server").length;
  return { address: `ipv4:${targets.join(",")}`, servers, calls, next };
}

const encode = (name, message) => definition[name].serialize(message);

function errorOf([code, details, reason]) {
  const metadata = new Metadata();
  if (reason !== undefined) {
    const value = encode("google.rpc.ErrorInfo", { reason });
    const info = { type_url: "type.googleapis.com/google.rpc.ErrorInfo", value };
    metadata.set("grpc-status-details-bin", encode("google.rpc.Status", { code: status[code], details: [info] }));
  }
  return { code: status[code], details, metadata };
}

// The error and the response by which a step replies.
function replyOf(method, message, { answers = [], fails, held_as: heldAs = message.reservationId, ended = false }) {
  if (fails) return [errorOf(fails)];
  if (method === "Reserve") return [null, { answer: answerOf(answers[0]), reservationId: heldAs, ended }];
  return [null, { answers: answers.map(answerOf) }];
}
