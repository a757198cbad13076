package tollgate;

import java.time.Duration;
import java.util.Objects;

/**
 * For how long a reservation holds its hits.
 *
 * @param ttl 1 ms to 24 h
 * @param onExpiry what happens to the hits then
 */
public record HoldTerms(Duration ttl, OnExpiry onExpiry) {

  public HoldTerms {
    Objects.requireNonNull(ttl, "ttl");
    Objects.requireNonNull(onExpiry, "onExpiry");
  }

  /** Returns terms by which the hits are given back after this time. */
  public static HoldTerms releasedAfter(Duration ttl) {
    return new HoldTerms(ttl, OnExpiry.RELEASE);
  }

  /** Returns terms by which the hits stay charged after this time. */
  public static HoldTerms chargedAfter(Duration ttl) {
    return new HoldTerms(ttl, OnExpiry.CHARGE);
  }
}
