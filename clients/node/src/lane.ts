// Concurrent requests of one method, sent in batches: while the allowed number of calls is under way, requests wait, and
// the next call takes as many of them as fit. No timer delays a request.

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
  readonly settle: (outcome: Decision | InvalidRequestError | NoAnswerError) => void;
  // Set once the caller has its outcome.
  settled: boolean;
  // Whether it is sent in a call of its own.
  alone: boolean;
}

export class Lane {
  readonly #send: Send;
  readonly #options: LaneOptions;
  readonly #onBatch: (size: number) => void;
  // Invariant: in the order of deadlines, and the first one is not settled.
  #queue: Pending[] = [];
  #calls = 0;

  constructor(send: Send, options: LaneOptions, onBatch: (size: number) => void) {
    this.#send = send;
    this.#options = options;
    this.#onBatch = onBatch;
  }

  /** Rejects with `InvalidRequestError` or `NoAnswerError`. */
  decide(request: Request): Promise<Decision> {
    return new Promise((resolve, reject) => {
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
        alone: false,
      };
      this.#queue.push(pending);
      this.#sendWaiting();
    });
  }

  /** Ends all requests that wait for a call. */
  close(): void {
    const waiting = this.#queue;
    this.#queue = [];
    const closed = new NoAnswerError("CANCELLED", "the client is closed");
    for (const pending of waiting) pending.settle(closed);
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
    for (const { request, alone } of this.#queue) {
      size += request.size;
      if (count > 0 && (alone || size > CALL_SIZE_MAX || count >= this.#options.maxBatch)) break;
      count += 1;
      if (alone) break;
    }
    const batch = this.#queue.splice(0, count);
    this.#dropSettled();
    return batch;
  }

  // Never rejects.
  async #sendBatch(batch: Pending[]): Promise<void> {
    this.#onBatch(batch.length);
    // The last request has waited for the shortest time.
    const timeoutMs = Math.max(...batch.map(({ deadline }) => deadline)) - performance.now();
    let answers: WireAnswer[];
    try {
      answers = await this.#send(batch.map(({ request }) => encode(request)), timeoutMs);
    } catch (error) {
      this.#fail(batch, error as InvalidRequestError | NoAnswerError);
      return;
    }
    const missing = new NoAnswerError("INTERNAL", "the response lacks an answer");
    for (const [index, pending] of batch.entries()) {
      const answer = answers[index];
      pending.settle(answer ? decode(answer) : missing);
    }
  }

  #fail(batch: Pending[], error: InvalidRequestError | NoAnswerError): void {
    const waiting = batch.filter(({ settled }) => !settled);
    if (error instanceof InvalidRequestError && batch.length > 1) {
      // One request made the call invalid, so nothing was charged. The others must not fail with it.
      for (const pending of waiting) pending.alone = true;
      this.#queue.unshift(...waiting);
      return;
    }
    for (const pending of waiting) pending.settle(error);
  }

  #dropSettled(): void {
    while (this.#queue[0]?.settled) this.#queue.shift();
  }
}
