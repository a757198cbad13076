package tollgate;

import java.time.Duration;

/**
 * The size of prepaid slices.
 *
 * @param hits of each slice; at most what the limit has left, or there is no slice
 * @param ttl the time for which a slice may be spent at most, 1 ms to 24 h; what is left of it then is given back. A
 *     slice that lasts less than 50 ms is given back unused.
 * @param maxKeys keys with a slice; checks of further keys ask the server
 */
public record SliceOptions(long hits, Duration ttl, int maxKeys) {

  public SliceOptions {
    if (hits < 1 || maxKeys < 1) {
      throw new IllegalArgumentException("hits or maxKeys is below 1");
    }
    if (ttl.compareTo(Duration.ofMillis(1)) < 0 || ttl.compareTo(Duration.ofDays(1)) > 0) {
      throw new IllegalArgumentException("ttl is not within 1 ms to 24 h: " + ttl);
    }
  }
}
