// Requests and answers as messages of `tollgate.v1`.

import { fileURLToPath } from "node:url";

import { loadPackageDefinition, type Metadata, type ServiceClientConstructor, status } from "@grpc/grpc-js";
import { loadSync, type MessageTypeDefinition } from "@grpc/proto-loader";

import type { Decision, LimitStatus } from "./decision.js";
import { InvalidRequestError, LimitError, NoAnswerError } from "./errors.js";
import type { Unit } from "./limit.js";
import { numberOptions, TTL_MAX_MS } from "./options.js";
import type { LimitResult, OwnLimit } from "./own_limit.js";
import {
  type Descriptor,
  type ParsedRequest,
  parseDescriptor,
  parseEntries,
  parseOnExpiry,
  parseUnit,
  text,
  whole,
} from "./request.js";
import type { HitsByIndex, SettledOutcome, Settlement, Terms } from "./reservation.js";

/** The directory of `tollgate/v1/tollgate.proto`, for calls that the client does not have. */
export const PROTO_DIRECTORY = fileURLToPath(new URL("../proto", import.meta.url));

const FILES = ["tollgate/v1/tollgate.proto", "google/rpc/status.proto", "google/rpc/error_details.proto"];
const definition = loadSync(FILES, {
  includeDirs: [PROTO_DIRECTORY],
  enums: String,
  longs: Number,
  defaults: true,
});
const { tollgate } = loadPackageDefinition(definition) as unknown as {
  tollgate: { v1: { RateLimiter: ServiceClientConstructor } };
};

export const RateLimiter = tollgate.v1.RateLimiter;

const StatusMessage = definition["google.rpc.Status"] as MessageTypeDefinition<object, WireStatus>;
const ErrorInfo = definition["google.rpc.ErrorInfo"] as MessageTypeDefinition<object, { reason: string }>;

interface WireStatus {
  details: { type_url: string; value: Buffer }[];
}

// A message has at most 4 MiB, of which the request takes all but its tag and length.
const REQUEST_BYTES_MAX = (4 << 20) - 16;

export interface WireAnswer {
  verdict: "UNDECIDED" | "ALLOWED" | "DENIED";
  delay: Duration | null;
  retryAfter: Duration | null;
  limits: WireLimitStatus[];
  degraded: boolean;
  neverBecause: string;
  error: { code: number; message: string } | null;
}

interface WireLimitStatus {
  descriptorIndex: number;
  rule: string;
  requestsPerUnit: number;
  unit: string;
  remaining: number;
  resetAfter: Duration | null;
  retryAfter: Duration | null;
  refused: boolean;
  refusedInShadow: boolean;
  refusedByCandidate: boolean;
  degraded: boolean;
}

export interface WireSettlement {
  limits: {
    descriptorIndex: number;
    rule: string;
    outcome: string;
    reserved: number;
    notCharged: number;
    remaining: number;
    resetAfter: Duration | null;
  }[];
  unknown: boolean;
}

export interface WireOwnLimit {
  domain: string;
  key: { entries: WireEntry[] } | null;
  requestsPerUnit?: number;
  burst?: number;
  refillAmount?: number;
  maxInFlight?: number;
  overdraftLimit?: number;
  unit: string;
  unlimited: boolean;
  expiresAfter: Duration | null;
  note: string;
  setBy: string;
  setByIsClaimed: boolean;
  setAt: Duration | null;
  version: number;
}

export interface WireLimitResult {
  limit: WireOwnLimit | null;
  rule: string;
  error: (WireStatus & { code: number; message: string }) | null;
}

interface WireEntry {
  key: string;
  value: string;
}

interface Duration {
  seconds: number;
  nanos: number;
}

/** A request as one field of the message of a call; such fields one after the other are the message. */
export interface RequestField {
  readonly field: Buffer;
  /** The bytes of the request, without its tag and length. */
  readonly bytes: number;
}

/** The request of a check or a refund. @throws InvalidRequestError if the request is too large */
export function encodeCounted(request: ParsedRequest): RequestField {
  const { hits, requestId } = request;
  // An empty text takes bytes if it is there.
  return encode({ ...messageOf(request), hits, ...(requestId !== "" && { requestId }) });
}

/** @throws InvalidRequestError if the request is too large */
export function encodePeek({ domain, descriptors }: ParsedRequest): RequestField {
  return encode(messageOf({ domain, descriptors: descriptors.map(({ entries, limit }) => ({ entries, limit })) }));
}

/** @throws InvalidRequestError if the request is too large, or the terms are invalid */
export function encodeReserve(request: ParsedRequest, terms: Terms, reservationId: string) {
  const { ttlMs, onExpiry } = withDefaults(terms);
  const ttl = durationOf(ttlMs, "ttlMs");
  const held = { ...messageOf(request), amount: request.hits, ttl, reservationId, onExpiry: onExpiry.toUpperCase() };
  requireSize(RateLimiter.service.Reserve?.requestSerialize(held).length ?? 0);
  return held;
}

/** @throws InvalidRequestError that names the place, or if the message is too large */
export function encodeLimits(limits: readonly OwnLimit[], dryRun: boolean) {
  const message = { limits: limits.map((limit, index) => encodeLimit(limit, `limits[${index}]`)), dryRun };
  requireSize(RateLimiter.service.SetLimits?.requestSerialize(message).length ?? 0);
  return message;
}

const OWN_NUMBERS = ["requestsPerUnit", "burst", "refillAmount", "maxInFlight", "overdraftLimit"] as const;

function encodeLimit({ domain, key, unit, unlimited, expiresAfterMs, note, setBy, ...given }: OwnLimit, place: string) {
  const number = (name: "replacesVersion" | (typeof OWN_NUMBERS)[number]) =>
    given[name] === undefined ? {} : { [name]: whole(given[name], `${place}.${name}`) };
  const limit = {
    domain: text(domain, `${place}.domain`),
    key: encodeDescriptor(parseDescriptor(key, `${place}.key`)),
    ...Object.assign({}, ...OWN_NUMBERS.map(number)),
    ...(unit !== undefined && { unit: parseUnit(unit, `${place}.unit`).toUpperCase() }),
    ...(unlimited !== undefined && { unlimited }),
    ...(expiresAfterMs !== undefined && { expiresAfter: durationOf(expiresAfterMs, `${place}.expiresAfterMs`) }),
    ...(note !== undefined && { note: text(note, `${place}.note`) }),
    ...(setBy !== undefined && { setBy: text(setBy, `${place}.setBy`) }),
  };
  return { limit, ...number("replacesVersion") };
}

/** @throws InvalidRequestError if the message is too large */
export function encodeKeys({ domain, descriptors }: ParsedRequest) {
  const message = messageOf({ domain, descriptors });
  requireSize(RateLimiter.service.GetLimits?.requestSerialize(message).length ?? 0);
  return message;
}

/** @throws InvalidRequestError that names the place */
export function encodePrefix(domain: string, prefix: Descriptor["entries"]) {
  const { entries } = encodeDescriptor({ entries: parseEntries(prefix, "prefix") });
  return { domain: text(domain, "domain"), prefix: entries };
}

/** The message that ends a reservation, with the hits of single descriptors, and without the common hits. */
export function encodeEnd({ domain, descriptors }: ParsedRequest, reservationId: string, hits: HitsByIndex = {}) {
  const used = descriptors.map((each) => ({ ...each }));
  for (const [index, each] of Object.entries(hits)) {
    const descriptor = used[Number(index)];
    if (descriptor === undefined)
      throw new InvalidRequestError(`hits of descriptor ${index}, of ${used.length} descriptors`);
    descriptor.hits = whole(each, `hits[${index}]`);
  }
  return { ...messageOf({ domain, descriptors: used }), reservationId };
}

function messageOf({ domain, descriptors }: { domain: string; descriptors: readonly Descriptor[] }) {
  return { domain, descriptors: descriptors.map(encodeDescriptor) };
}

function encodeDescriptor({ entries, limit, hits, onExpiry }: Descriptor) {
  return {
    entries: entries.map(([key, value]) => ({ key, value })),
    ...(limit && { limit: { requestsPerUnit: limit.requestsPerUnit, unit: limit.unit.toUpperCase() } }),
    ...(hits !== undefined && { hits }),
    ...(onExpiry && { onExpiry: onExpiry.toUpperCase() }),
  };
}

// The messages of checks, peeks and refunds have the same fields.
function encode(request: object): RequestField {
  const field = RateLimiter.service.Check?.requestSerialize({ requests: [request] }) ?? Buffer.alloc(0);
  // A tag, and a length of 7 bits in each byte but the last.
  let start = 1;
  while ((field[start] ?? 0) >= 0x80) start += 1;
  const bytes = field.length - start - 1;
  requireSize(bytes);
  return { field, bytes };
}

function requireSize(bytes: number): void {
  if (bytes > REQUEST_BYTES_MAX)
    throw new InvalidRequestError(`the request has ${bytes} bytes, of at most ${REQUEST_BYTES_MAX}`);
}

/** The terms with their defaults. */
export function withDefaults({ ttlMs, onExpiry = "release" }: Terms) {
  parseOnExpiry(onExpiry, "onExpiry");
  try {
    return { ...numberOptions({ ttlMs: { min: 1, max: TTL_MAX_MS, usual: 60_000 } }, { ttlMs }), onExpiry };
  } catch (error) {
    throw new InvalidRequestError((error as RangeError).message);
  }
}

export function decodeSettlement({ limits, unknown }: WireSettlement): Settlement {
  return {
    limits: limits.map(({ descriptorIndex: descriptor, outcome, resetAfter, ...limit }) => ({
      descriptor,
      ...limit,
      outcome: outcome.toLowerCase() as SettledOutcome,
      resetAfterMs: milliseconds(resetAfter) ?? 0,
    })),
    unknown,
  };
}

/** The decision in an answer. Throws the errors of `errorOf` if the request was not decided. */
export function decode(answer: WireAnswer | null | undefined): Decision {
  if (!answer || answer.verdict === "UNDECIDED") {
    if (answer?.error) throw errorOf(answer.error.code, answer.error.message);
    throw new NoAnswerError("INTERNAL", "the server answered without a verdict");
  }
  const { verdict, delay, retryAfter, limits, degraded, neverBecause } = answer;
  return {
    allowed: verdict === "ALLOWED",
    source: "server",
    delayMs: milliseconds(delay) ?? 0,
    retryAfterMs: milliseconds(retryAfter),
    limits: limits.map(decodeLimit),
    degraded,
    noAnswer: undefined,
    neverBecause,
  };
}

/** The reason in the details of an error; empty if there is none, or if they cannot be read. */
export function reasonOf(metadata: Metadata): string {
  const [encoded] = metadata.get("grpc-status-details-bin");
  if (!(encoded instanceof Buffer)) return "";
  try {
    return reasonIn(StatusMessage.deserialize(encoded));
  } catch {
    return "";
  }
}

function reasonIn({ details }: WireStatus): string {
  const info = details.find(({ type_url: type }) => type.endsWith("/google.rpc.ErrorInfo"));
  return info ? ErrorInfo.deserialize(info.value).reason : "";
}

/** The answers to so many requests. */
export function answersTo<Answer>(requests: number, answers: Answer[]): Answer[] {
  if (answers.length !== requests)
    throw new NoAnswerError("INTERNAL", `${answers.length} answers to ${requests} requests`);
  return answers;
}

/** Why there is no answer. An invalid request is the only error that the caller can correct. */
export function errorOf(code: number, message: string): InvalidRequestError | NoAnswerError {
  if (code === status.INVALID_ARGUMENT) return new InvalidRequestError(message);
  return new NoAnswerError(status[code] ?? "UNKNOWN", message);
}

export function decodeResult({ limit, rule, error }: WireLimitResult): LimitResult {
  return {
    limit: limit ? decodeOwnLimit(limit) : undefined,
    rule,
    error: error ? new LimitError(status[error.code] ?? "UNKNOWN", reasonIn(error), error.message) : undefined,
  };
}

export function decodeOwnLimit({ key, unit, expiresAfter, setAt, ...limit }: WireOwnLimit): OwnLimit {
  return {
    ...limit,
    key: { entries: (key?.entries ?? []).map(({ key: name, value }) => [name, value] as const) },
    unit: unitOf(unit),
    expiresAfterMs: milliseconds(expiresAfter),
    setAt: setAt ? new Date(milliseconds(setAt) ?? 0) : undefined,
  };
}

function decodeLimit({ descriptorIndex, unit, resetAfter, retryAfter, ...limit }: WireLimitStatus): LimitStatus {
  return {
    ...limit,
    descriptor: descriptorIndex,
    unit: unitOf(unit),
    resetAfterMs: milliseconds(resetAfter) ?? 0,
    retryAfterMs: milliseconds(retryAfter),
  };
}

function unitOf(unit: string): Unit | undefined {
  return unit === "UNKNOWN" ? undefined : (unit.toLowerCase() as Unit);
}

function durationOf(ms: number, place: string): Duration {
  if (!Number.isFinite(ms)) throw new InvalidRequestError(`${place}: not a number`);
  return { seconds: Math.trunc(ms / 1_000), nanos: Math.round((ms % 1_000) * 1e6) };
}

function milliseconds(duration: Duration | null): number | undefined {
  return duration ? duration.seconds * 1_000 + duration.nanos / 1e6 : undefined;
}
