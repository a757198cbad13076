// Concurrent requests of one method, sent in batches: while the allowed number of calls is under way, requests wait,
// and the next call takes as many of them as fit. No timer delays a request.

import { decode, encode, type WireAnswer, type WireRequest } from "./codec.js";
import type { Decision } from "./decision.js";
import { InvalidRequestError, NoAnswerError } from "./errors.js";
import { CALL_SIZE_MAX, type Request } from "./request.js";

/** Sends one call; the answers are in the order of the requests. */
export type Send = (requests: WireRequest[], timeoutMs: number) => Promise<WireAnswer[]>;

export interface LaneOptions {
  /** The time that a request waits for its answer, in milliseconds. */
  readonly timeoutMs: number;
  /** The maximum number of requests of a call. */
  readonly maxBatch: number;
  /** The maximum number of calls under way. */
  readonly maxCalls: number;
  /** The maximum number of requests that wait for a call. */
  readonly maxQueue: number;
}

interface Pending {
  readonly request: Request;
  readonly deadline: number;
  readonly settle: (outcome: Decision | Error) => void;
  // Set once the caller has its outcome.
  settled: boolean;
}

export class Lane {
  readonly #send: Send;
  readonly #options: LaneOptions;
  readonly #onBatch: (size: number) => void;
  // Invariant: in the order of deadlines, and the first one is not settled.
  #queue: Pending[] = [];
  #calls = 0;
  #closed = false;

  constructor(send: Send, options: LaneOptions, onBatch: (size: number) => void) {
    this.#send = send;
    this.#options = options;
    this.#onBatch = onBatch;
  }

  /** Rejects with `InvalidRequestError` or `NoAnswerError`. */
  decide(request: Request): Promise<Decision> {
    return new Promise((resolve, reject) => {
      if (this.#closed) {
        reject(closed());
        return;
      }
      if (this.#queue.length >= this.#options.maxQueue) {
        reject(new NoAnswerError("RESOURCE_EXHAUSTED", `${this.#options.maxQueue} requests wait already`));
        return;
      }
      const { timeoutMs } = this.#options;
      const timer = setTimeout(() => {
        pending.settle(new NoAnswerError("DEADLINE_EXCEEDED", `no answer within ${timeoutMs} ms`));
        this.#dropSettled();
      }, timeoutMs);
      const pending: Pending = {
        request,
        deadline: performance.now() + timeoutMs,
        settle: (outcome) => {
          pending.settled = true;
          clearTimeout(timer);
          if (outcome instanceof Error) reject(outcome);
          else resolve(outcome);
        },
        settled: false,
      };
      this.#queue.push(pending);
      this.#sendWaiting();
    });
  }

  /** Ends all requests that wait for a call, and all later ones. Calls under way end by themselves. */
  close(): void {
    this.#closed = true;
    const waiting = this.#queue;
    this.#queue = [];
    for (const pending of waiting) pending.settle(closed());
  }

  #sendWaiting(): void {
    while (this.#calls < this.#options.maxCalls && this.#queue.length > 0) {
      const batch = this.#takeBatch();
      this.#calls += 1;
      void this.#sendBatch(batch).then(() => {
        this.#calls -= 1;
        this.#sendWaiting();
      });
    }
  }

  #takeBatch(): Pending[] {
    let [count, size] = [0, 0];
    for (const { request } of this.#queue) {
      size += request.size;
      if (count > 0 && (size > CALL_SIZE_MAX || count >= this.#options.maxBatch)) break;
      count += 1;
    }
    const batch = this.#queue.splice(0, count);
    this.#dropSettled();
    return batch;
  }

  // Never rejects.
  async #sendBatch(batch: Pending[]): Promise<void> {
    const last = batch.at(-1);
    if (last === undefined) return;
    try {
      this.#onBatch(batch.length);
      const requests = batch.map(({ request }) => encode(request));
      settle(batch, await this.#send(requests, last.deadline - performance.now()));
    } catch (error) {
      const waiting = batch.filter(({ settled }) => !settled);
      if (error instanceof InvalidRequestError && batch.length > 1) {
        // The call as a whole is invalid, so it charged nothing. One half may be valid.
        const middle = waiting.length >> 1;
        await this.#sendBatch(waiting.slice(0, middle));
        await this.#sendBatch(waiting.slice(middle));
        return;
      }
      for (const pending of waiting) pending.settle(error as Error);
    }
  }

  #dropSettled(): void {
    while (this.#queue[0]?.settled) this.#queue.shift();
  }
}

function settle(batch: Pending[], answers: WireAnswer[]): void {
  const missing = new NoAnswerError("INTERNAL", "the response lacks an answer");
  for (const [index, pending] of batch.entries()) {
    const answer = answers[index];
    pending.settle(answer ? decode(answer) : missing);
  }
}

function closed(): NoAnswerError {
  return new NoAnswerError("CANCELLED", "the client is closed");
}
