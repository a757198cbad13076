// Limits and their windows, as callers send them and as answers name them.

export const UNITS = ["second", "minute", "hour", "day", "week", "month", "year"] as const;

/** The unit of a limit. */
export type Unit = (typeof UNITS)[number];

/** A limit that the caller sends instead of the one in the rules. */
export interface Limit {
  /** Hits that pass in one unit; 0 lets none pass. */
  readonly requestsPerUnit: number;
  readonly unit: Unit;
}
