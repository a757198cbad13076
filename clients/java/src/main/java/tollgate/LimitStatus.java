package tollgate;

import java.time.Duration;

/**
 * One limit of a request.
 *
 * @param descriptor the index of the descriptor in the request
 * @param rule the name of the rule, or its path; empty for a limit that the caller sent
 * @param remaining hits that are left
 * @param resetAfter the time until the limit is unused; if the limit refuses, until the same hits pass
 * @param retryAfter the time until the same hits pass, if the limit refuses; zero if they never do
 * @param refused whether the limit refuses the request; in shadow mode the request may be allowed nevertheless
 */
public record LimitStatus(
    int descriptor,
    String rule,
    long requestsPerUnit,
    Unit unit,
    long remaining,
    Duration resetAfter,
    Duration retryAfter,
    boolean refused) {

  /** The status as it reads when this time has passed. */
  LimitStatus after(Duration elapsed) {
    return new LimitStatus(
        descriptor,
        rule,
        requestsPerUnit,
        unit,
        remaining,
        Decision.rest(resetAfter, elapsed),
        Decision.rest(retryAfter, elapsed),
        refused);
  }

  /** The status with so many more hits that are left. */
  LimitStatus withMore(long hits) {
    long more = remaining > Long.MAX_VALUE - hits ? Long.MAX_VALUE : remaining + hits;
    return new LimitStatus(descriptor, rule, requestsPerUnit, unit, more, resetAfter, retryAfter, refused);
  }
}
