// What is asked, parsed so that no request makes the message of several requests unreadable.

import { createHash } from "node:crypto";

import { InvalidRequestError } from "./errors.js";
import { type Limit, type Unit, UNITS } from "./limit.js";

/** Names what is limited. */
export interface Descriptor {
  /** Key and value of each level of the rules, in their order. */
  readonly entries: readonly (readonly [key: string, value: string])[];
  /** Replaces the limit of the rules. */
  readonly limit?: Limit | undefined;
  /** Replaces the hits of the request for this descriptor; 0 charges nothing. */
  readonly hits?: number | undefined;
  /** Replaces that of the terms of a reservation. Other calls ignore it. */
  readonly onExpiry?: OnExpiry | undefined;
}

/** Descriptors of one domain that are decided together. */
export interface Request {
  readonly domain: string;
  readonly descriptors: readonly Descriptor[];
  /** The hits of each descriptor without hits of its own, by default 1. 0 means 1. */
  readonly hits?: number | undefined;
  /**
   * Makes a check or a refund count once: one that is repeated with the same id within the window of the server is
   * answered as the first one. At most 63 bytes. Other calls leave it out.
   */
  readonly requestId?: string | undefined;
}

/** Whether the hits of a reservation that expires are given back or stay charged. */
export type OnExpiry = "release" | "charge";

const REQUESTS_PER_UNIT_MAX = 2 ** 32 - 1;

/** A valid copy of a request, which its caller does not change. */
export class ParsedRequest implements Request {
  readonly domain: string;
  readonly descriptors: readonly Descriptor[];
  readonly hits: number;
  /** Empty without an id. */
  readonly requestId: string;
  #key: string | undefined;

  /** @throws InvalidRequestError that names the place */
  constructor({ domain, descriptors, hits = 1, requestId = "" }: Request) {
    this.domain = text(domain, "domain");
    if (!Array.isArray(descriptors)) throw new InvalidRequestError("descriptors: not an array");
    this.descriptors = descriptors.map((each, index) => parseDescriptor(each, `descriptors[${index}]`));
    this.hits = Math.max(1, whole(hits, "hits"));
    this.requestId = text(requestId, "requestId");
  }

  /** Names the counters: a digest of the domain, the entries and the limits. */
  get key(): string {
    if (this.#key === undefined) {
      const counters = this.descriptors.map(({ entries, limit }) => [entries, limit?.requestsPerUnit, limit?.unit]);
      const named = JSON.stringify([this.domain, counters]);
      this.#key = createHash("sha256").update(named).digest("base64");
    }
    return this.#key;
  }

  /** The hits of each descriptor. */
  hitsOfEach(): number[] {
    return this.descriptors.map(({ hits }) => hits ?? this.hits);
  }
}

/** A valid copy of a descriptor. @throws InvalidRequestError that names the place */
export function parseDescriptor(descriptor: Descriptor, place: string): Descriptor {
  if (!Array.isArray(descriptor?.entries)) throw new InvalidRequestError(`${place}.entries: not an array`);
  const entries = parseEntries(descriptor.entries, `${place}.entries`);
  const { hits, limit, onExpiry } = descriptor;
  return {
    entries,
    ...(hits !== undefined && { hits: whole(hits, `${place}.hits`) }),
    ...(limit !== undefined && { limit: parseLimit(limit, `${place}.limit`) }),
    ...(onExpiry !== undefined && { onExpiry: parseOnExpiry(onExpiry, `${place}.onExpiry`) }),
  };
}

/** Valid copies of keys and values. @throws InvalidRequestError that names the place */
export function parseEntries(entries: Descriptor["entries"], place: string): Descriptor["entries"] {
  return entries.map((entry, index) => {
    const at = `${place}[${index}]`;
    if (!Array.isArray(entry) || entry.length !== 2) throw new InvalidRequestError(`${at}: not a key and a value`);
    return [text(entry[0], `${at}: key`), text(entry[1], `${at}: value`)] as const;
  });
}

function parseLimit({ requestsPerUnit, unit }: Limit, place: string): Limit {
  if (whole(requestsPerUnit, `${place}.requestsPerUnit`) > REQUESTS_PER_UNIT_MAX)
    throw new InvalidRequestError(`${place}.requestsPerUnit: above ${REQUESTS_PER_UNIT_MAX}`);
  return { requestsPerUnit, unit: parseUnit(unit, `${place}.unit`) };
}

/** @throws InvalidRequestError that names the place */
export function parseUnit(unit: Unit, place: string): Unit {
  if (!UNITS.includes(unit)) throw new InvalidRequestError(`${place}: not one of ${UNITS.join(", ")}`);
  return unit;
}

/** What happens to a reservation when it expires. */
export function parseOnExpiry(onExpiry: OnExpiry, place: string): OnExpiry {
  if (!["release", "charge"].includes(onExpiry))
    throw new InvalidRequestError(`${place}: not \`release\` or \`charge\``);
  return onExpiry;
}

// A text that is no UTF-8 would make the message unreadable, and with it the requests of other callers.
export function text(value: string, place: string): string {
  if (typeof value !== "string") throw new InvalidRequestError(`${place}: not a string`);
  if (!value.isWellFormed()) throw new InvalidRequestError(`${place}: not valid Unicode`);
  return value;
}

/** A number of hits. */
export function whole(value: number, place: string): number {
  if (!Number.isSafeInteger(value) || value < 0) throw new InvalidRequestError(`${place}: not a whole number from 0`);
  return value;
}
