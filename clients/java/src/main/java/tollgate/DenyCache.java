package tollgate;

import java.time.Duration;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import tollgate.Codec.CounterKey;

/**
 * Remembers refusals until the instant from which the same request may pass. Instants are those of a monotonic clock.
 */
final class DenyCache {

  private final int size;
  private final Duration max;
  // Invariant: the oldest refusal is the first one.
  private final Map<CounterKey, Refusal> refusals = new LinkedHashMap<>();
  private final Map<CounterKey, Checks> underWay = new HashMap<>();

  /**
   * What is known of one key.
   *
   * @param hits those of each descriptor that were refused: as many or more are refused too
   * @param sent the check was sent at this instant; times of the decision count from here or later
   * @param duration the time from {@code sent} until the key is asked for again
   */
  private record Refusal(long[] hits, Decision decision, long sent, long duration) {}

  /** Checks of one key that are under way. */
  private static final class Checks {
    private int count;
    // The instant of the last refund or change of limits, or null. The server may have decided checks that were sent
    // earlier before it.
    private Long refunded;
  }

  /** Remembers at most {@code size} keys. */
  DenyCache(int size, Duration max) {
    this.size = size;
    this.max = max;
  }

  /** The decision on a request that is certain to be refused at this instant. */
  synchronized Optional<Decision> denied(CounterKey key, long[] hits, long now) {
    Refusal refusal = refusals.get(key);
    if (refusal == null || now - refusal.sent >= refusal.duration || !covers(hits, refusal.hits)) {
      return Optional.empty();
    }
    return Optional.of(refusal.decision.after(Duration.ofNanos(now - refusal.sent), Source.DENY_CACHE, 0));
  }

  /** A check of this key is under way, until {@link #end}. */
  synchronized void begin(CounterKey key) {
    underWay.computeIfAbsent(key, unused -> new Checks()).count++;
  }

  synchronized void end(CounterKey key) {
    Checks checks = underWay.get(key);
    checks.count--;
    if (checks.count == 0) {
      underWay.remove(key);
    }
  }

  /** Remembers a refusal, if it ends, of a check that was sent at this instant and is under way. */
  synchronized void refuse(CounterKey key, long[] hits, Decision decision, long sent) {
    if (size == 0 || decision.retryAfter().isZero()) {
      return;
    }
    Long refunded = underWay.get(key).refunded;
    if (refunded != null && sent - refunded < 0) {
      return;
    }
    // The server decided after this instant, so the local refusal never outlasts its own.
    long duration = (decision.retryAfter().compareTo(max) < 0 ? decision.retryAfter() : max).toNanos();
    if (refusals.remove(key) == null && refusals.size() >= size) {
      refusals.remove(refusals.keySet().iterator().next());
    }
    refusals.put(key, new Refusal(hits, decision, sent, duration));
  }

  /** Forgets the refusals of a key whose hits were given back at this instant. */
  synchronized void refund(CounterKey key, long now) {
    refusals.remove(key);
    Checks checks = underWay.get(key);
    if (checks != null) {
      checks.refunded = now;
    }
  }

  /** Forgets all refusals of checks that were sent before this instant. */
  synchronized void clear(long now) {
    refusals.clear();
    underWay.values().forEach(checks -> checks.refunded = now);
  }

  /** Whether no check is under way. */
  synchronized boolean isIdle() {
    return underWay.isEmpty();
  }

  private static boolean covers(long[] hits, long[] refused) {
    for (int i = 0; i < hits.length; i++) {
      if (hits[i] < refused[i]) {
        return false;
      }
    }
    return true;
  }
}
