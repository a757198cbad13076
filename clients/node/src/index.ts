// Client of the rate-limit service Tollgate.

export type { Checker } from "./checker.js";
export { Client, type ClientOptions } from "./client.js";
export { PROTO_DIRECTORY } from "./codec.js";
export type { TlsOptions } from "./connection.js";
export { type Decision, type LimitStatus, type Source, tightest } from "./decision.js";
export { InvalidRequestError, LimitError, NoAnswerError } from "./errors.js";
export { type Refusal, refusal } from "./http.js";
export type { Limit, Unit } from "./limit.js";
export type { Metrics, Outcome } from "./metrics.js";
export type { LimitResult, OwnLimit } from "./own_limit.js";
export { PrepaidSlices, type SliceOptions } from "./prepaid.js";
export type { Descriptor, OnExpiry, Request } from "./request.js";
export type { HitsByIndex, Reservation, SettledLimit, SettledOutcome, Settlement, Terms } from "./reservation.js";
