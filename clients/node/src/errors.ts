// Why a request has no decision of the server.

/** The request is invalid: the caller has to change it. There is no default decision for it. */
export class InvalidRequestError extends Error {
  override readonly name = "InvalidRequestError";
}

/** The server did not decide the request. The client makes the default decision and shows this error in it. */
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
