package tollgate;

import java.time.Duration;
import java.util.Objects;

/**
 * How a reservation holds its hits.
 *
 * @param ttl the time until it expires, 1 ms to 24 h
 * @param onExpiry what happens then to the hits of each descriptor without its own
 */
public record Terms(Duration ttl, OnExpiry onExpiry) {

  /**
   * Checks the range.
   *
   * @throws InvalidRequestException if the ttl is out of its range
   */
  public Terms {
    Objects.requireNonNull(onExpiry, "onExpiry");
    Range.of(Duration.ofMillis(1), Duration.ofDays(1)).check("ttl", ttl, InvalidRequestException::new);
  }

  /** Returns terms by which the hits are given back after 60 s. */
  public Terms() {
    this(Duration.ofSeconds(60), OnExpiry.RELEASE);
  }

  /** Returns the terms with this time. */
  public Terms withTtl(Duration ttl) {
    return new Terms(ttl, onExpiry);
  }

  /** Returns the terms with this end. */
  public Terms withOnExpiry(OnExpiry onExpiry) {
    return new Terms(ttl, onExpiry);
  }
}
