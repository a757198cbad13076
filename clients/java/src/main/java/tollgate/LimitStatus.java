package tollgate;

import java.time.Duration;

/**
 * One limit of a request.
 *
 * @param descriptor the index of the descriptor in the request
 * @param rule the name of the rule, or its path; empty for a limit that the caller sent
 * @param remaining hits that are left
 * @param resetAfter the time until the limit is unused; if the limit refuses, until the same hits pass,
 *     zero if they never do
 * @param retryAfter the time until the same hits pass, if the limit refuses; zero if they never do
 * @param refused whether the limit refuses the request; with the server in shadow mode it may be allowed nevertheless
 * @param refusedInShadow whether the limit would refuse the request, but its rule is in shadow mode
 * @param refusedByCandidate whether the candidate of the rule would refuse the request
 * @param degraded whether the server decided the limit without the owner of its counter
 */
public record LimitStatus(
    int descriptor,
    String rule,
    long requestsPerUnit,
    Unit unit,
    long remaining,
    Duration resetAfter,
    Duration retryAfter,
    boolean refused,
    boolean refusedInShadow,
    boolean refusedByCandidate,
    boolean degraded) {

  /** The status when this time has passed, and so many more hits are left. */
  LimitStatus after(Duration elapsed, long more) {
    return new LimitStatus(
        descriptor,
        rule,
        requestsPerUnit,
        unit,
        remaining > Long.MAX_VALUE - more ? Long.MAX_VALUE : remaining + more,
        Decision.rest(resetAfter, elapsed),
        Decision.rest(retryAfter, elapsed),
        refused,
        refusedInShadow,
        refusedByCandidate,
        degraded);
  }
}
