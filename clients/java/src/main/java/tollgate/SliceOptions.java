package tollgate;

import java.time.Duration;

/**
 * The size of prepaid slices.
 *
 * @param hits of each slice; at most what the limit has left, or there is no slice
 * @param ttl the time for which a slice may be spent at most, 1 ms to 24 h; what is left of it then is given back
 * @param keysMax keys with a slice, at most a million; checks of further keys ask the server
 */
public record SliceOptions(long hits, Duration ttl, int keysMax) {

  /**
   * Checks the ranges.
   *
   * @throws IllegalArgumentException if an option is out of its range
   */
  public SliceOptions {
    Range.of(1L, Long.MAX_VALUE).check("hits", hits);
    Range.of(Duration.ofMillis(1), Duration.ofDays(1)).check("ttl", ttl);
    Range.of(1, 1_000_000).check("keysMax", keysMax);
  }

  /** Returns the defaults: 100 hits for 5 s, and 100 keys. */
  public SliceOptions() {
    this(100, Duration.ofSeconds(5), 100);
  }

  /** Returns the options with these hits. */
  public SliceOptions withHits(long hits) {
    return new SliceOptions(hits, ttl, keysMax);
  }

  /** Returns the options with this time. */
  public SliceOptions withTtl(Duration ttl) {
    return new SliceOptions(hits, ttl, keysMax);
  }

  /** Returns the options with this number of keys. */
  public SliceOptions withKeysMax(int keysMax) {
    return new SliceOptions(hits, ttl, keysMax);
  }
}
