// Why a request has no decision of the server.

/** The request is invalid: the caller has to change it. There is no default decision for it. */
export class InvalidRequestError extends Error {
  override readonly name = "InvalidRequestError";
}

/** The server gave no answer. A decision by default shows this error; calls without a default reject with it. */
export class NoAnswerError extends Error {
  override readonly name = "NoAnswerError";

  /** `code` is the name of the gRPC status, for example `DEADLINE_EXCEEDED` or `UNAVAILABLE`. */
  constructor(
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

/** Why the limit of its own of one key was not read or changed. */
export class LimitError extends Error {
  override readonly name = "LimitError";

  /** `code` is the name of a gRPC status, `reason` a name such as `OUT_OF_BOUNDS` or `OTHER_VERSION`. */
  constructor(
    readonly code: string,
    readonly reason: string,
    message: string,
  ) {
    super(message);
  }
}

/** More checks wait for a call than may. */
export class QueueFullError extends NoAnswerError {
  constructor(waiting: number) {
    super("RESOURCE_EXHAUSTED", `${waiting} checks wait already`);
  }
}

export const closedError = () => new NoAnswerError("CANCELLED", "the client is closed");
export const lateError = () => new NoAnswerError("DEADLINE_EXCEEDED", "no answer in time");
