// What is asked, checked for everything that would make the message of several requests unreadable.

import type { Decision } from "./decision.js";
import { InvalidRequestError } from "./errors.js";

export const UNITS = ["second", "minute", "hour", "day", "week", "month", "year"] as const;

/** The unit of a limit. */
export type Unit = (typeof UNITS)[number];

/** A limit that the caller sends instead of the one in the rules. */
export interface Limit {
  /** Hits that pass in one unit; 0 lets none pass. */
  readonly requestsPerUnit: number;
  readonly unit: Unit;
}

/** Names what is limited. */
export interface Descriptor {
  /** Key and value of each level of the rules, in their order. */
  readonly entries: readonly (readonly [key: string, value: string])[];
  /** Replaces the limit of the rules. */
  readonly limit?: Limit | undefined;
  /** Replaces the hits of the request for this descriptor; 0 charges nothing. */
  readonly hits?: number | undefined;
}

/** Descriptors of one domain that are decided together. */
export interface Request {
  readonly domain: string;
  readonly descriptors: readonly Descriptor[];
  /** The hits of each descriptor without hits of its own; 0 only if the operation has none. */
  readonly hits: number;
  readonly requestId?: string | undefined;
  /** An upper bound of what it takes of `CALL_SIZE_MAX`. */
  readonly size: number;
}

/**
 * The maximum size of the requests of one call. With the sizes below it keeps the bounds of the server: 4 MiB (a
 * character has at most 3 bytes), 4,096 descriptors and 32,768 entries.
 */
export const CALL_SIZE_MAX = 1 << 20;
const DESCRIPTOR_SIZE = CALL_SIZE_MAX / 4_096;
const ENTRY_SIZE = CALL_SIZE_MAX / 32_768;

const REQUESTS_PER_UNIT_MAX = 2 ** 32 - 1;

/** How a check is charged. */
export interface CheckOptions {
  /**
   * Makes the check count once: one that is repeated with the same id within the window of the server is answered as
   * the first one. At most 63 bytes.
   */
  readonly requestId?: string | undefined;
}

/** Decides requests: a client, or slices of a limit. Middleware takes either. */
export interface Checker {
  /** Charges `hits` to each descriptor if the request passes. */
  check(domain: string, descriptors: readonly Descriptor[], hits?: number): Promise<Decision>;
}

/** A request to charge or refund `hits`. */
export function requestWithHits(
  domain: string,
  descriptors: readonly Descriptor[],
  hits: number,
  requestId?: string,
): Request {
  if (!isWholeNumber(hits, 1)) throw new InvalidRequestError("hits: not a whole number from 1");
  const request = requestOf(domain, descriptors, hits);
  if (requestId === undefined) return request;
  return { ...request, requestId, size: request.size + textSize(requestId, "requestId") };
}

/** Throws unless `actual` is a number of hits that were used. */
export function requireActual(actual: number): void {
  if (!isWholeNumber(actual, 0)) throw new InvalidRequestError("actual: not a whole number");
}

/** A request that has no hits of its own. */
export function requestWithoutHits(domain: string, descriptors: readonly Descriptor[]): Request {
  return requestOf(domain, descriptors, 0);
}

function requestOf(domain: string, descriptors: readonly Descriptor[], hits: number): Request {
  let size = textSize(domain, "domain");
  if (!Array.isArray(descriptors)) throw new InvalidRequestError("descriptors: not an array");
  for (const [index, descriptor] of descriptors.entries()) size += descriptorSize(descriptor, `descriptors[${index}]`);
  if (size > CALL_SIZE_MAX) throw new InvalidRequestError(`the request has a size above ${CALL_SIZE_MAX}`);
  return { domain, descriptors, hits, size };
}

function descriptorSize(descriptor: Descriptor, place: string): number {
  if (!Array.isArray(descriptor?.entries)) throw new InvalidRequestError(`${place}.entries: not an array`);
  let size = DESCRIPTOR_SIZE;
  for (const [index, entry] of descriptor.entries.entries()) {
    const at = `${place}.entries[${index}]`;
    if (!Array.isArray(entry) || entry.length !== 2) throw new InvalidRequestError(`${at}: not a key and a value`);
    size += ENTRY_SIZE + textSize(entry[0], `${at}: key`) + textSize(entry[1], `${at}: value`);
  }
  const { hits, limit } = descriptor;
  if (hits !== undefined && !isWholeNumber(hits, 0)) throw new InvalidRequestError(`${place}.hits: not a whole number`);
  if (limit !== undefined) {
    const { requestsPerUnit, unit } = limit;
    const at = `${place}.limit`;
    if (!isWholeNumber(requestsPerUnit, 0) || requestsPerUnit > REQUESTS_PER_UNIT_MAX)
      throw new InvalidRequestError(`${at}.requestsPerUnit: not a whole number up to ${REQUESTS_PER_UNIT_MAX}`);
    if (!UNITS.includes(unit)) throw new InvalidRequestError(`${at}.unit: not one of ${UNITS.join(", ")}`);
  }
  return size;
}

// A text that is no UTF-8 would make the message unreadable, and with it the requests of other callers.
function textSize(text: string, place: string): number {
  if (typeof text !== "string") throw new InvalidRequestError(`${place}: not a string`);
  if (!text.isWellFormed()) throw new InvalidRequestError(`${place}: not valid Unicode`);
  return text.length;
}

function isWholeNumber(number: number, min: number): boolean {
  return Number.isSafeInteger(number) && number >= min;
}
