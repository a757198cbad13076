// Client of the rate-limit service Tollgate.

export { Client, type ClientOptions } from "./client.js";
export { PROTO_DIRECTORY, type TlsOptions } from "./connection.js";
export { type Decision, type LimitStatus, type Source, tightest } from "./decision.js";
export { InvalidRequestError, NoAnswerError } from "./errors.js";
export { type Metrics, Stats } from "./metrics.js";
export { PrepaidSlices, type SliceOptions } from "./prepaid.js";
export type { Checker, CheckOptions, Descriptor, Limit, Request, Unit } from "./request.js";
export type { HoldTerms, Outcome, Reservation, SettledLimit, Settlement } from "./reservation.js";
