// Concurrent checks, sent in batches: while the allowed number of calls is under way, checks wait, and the next call
// takes as many of them as fit. No timer delays a check.

import { answersTo, type RequestField, type WireAnswer } from "./codec.js";
import { closedError, InvalidRequestError, lateError, QueueFullError } from "./errors.js";

// A message has at most 4 MiB, and a large request must not take others with it.
const BATCH_BYTES_MAX = 1 << 20;

/** Sends one call; the answers are in the order of the requests. */
export type Send = (requests: RequestField[], timeoutMs: number) => Promise<WireAnswer[]>;

export interface BatcherOptions {
  /** The time that a check waits for its answer, in milliseconds. */
  readonly timeoutMs: number;
  /** The maximum number of checks of a call. */
  readonly batchMax: number;
  /** The maximum number of calls under way. */
  readonly callsMax: number;
  /** The maximum number of checks that wait for a call. */
  readonly queueMax: number;
}

/** The answer to a check, and the instant at which the check was sent. */
export interface Reply {
  readonly answer: WireAnswer;
  readonly sent: number;
}

interface Pending extends RequestField {
  readonly deadline: number;
  readonly settle: (outcome: Reply | Error) => void;
  // Set once the caller has its outcome.
  settled: boolean;
}

export class Batcher {
  readonly #send: Send;
  readonly #options: BatcherOptions;
  readonly #onBatch: (size: number) => void;
  // Invariant: in the order of deadlines, and the first one is not settled.
  #queue: Pending[] = [];
  #calls = 0;
  #closed = false;

  constructor(send: Send, options: BatcherOptions, onBatch: (size: number) => void) {
    this.#send = send;
    this.#options = options;
    this.#onBatch = onBatch;
  }

  /** Rejects with `InvalidRequestError` or `NoAnswerError`. */
  check(request: RequestField): Promise<Reply> {
    return new Promise((resolve, reject) => {
      if (this.#closed) throw closedError();
      if (this.#queue.length >= this.#options.queueMax) throw new QueueFullError(this.#options.queueMax);
      const { timeoutMs } = this.#options;
      const timer = setTimeout(() => {
        pending.settle(lateError());
        this.#dropSettled();
      }, timeoutMs);
      const pending: Pending = {
        ...request,
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

  /** Ends all checks that wait for a call, and all later ones. */
  close(): void {
    this.#closed = true;
    const waiting = this.#queue;
    this.#queue = [];
    for (const pending of waiting) pending.settle(closedError());
  }

  #sendWaiting(): void {
    while (this.#calls < this.#options.callsMax && this.#queue.length > 0) {
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
    for (const { bytes } of this.#queue) {
      size += bytes;
      if (count > 0 && (size > BATCH_BYTES_MAX || count >= this.#options.batchMax)) break;
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
    const sent = performance.now();
    try {
      this.#onBatch(batch.length);
      const answers = answersTo(batch.length, await this.#send(batch, last.deadline - sent));
      for (const [index, answer] of answers.entries()) batch[index]?.settle({ answer, sent });
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
