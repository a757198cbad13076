package tollgate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import org.junit.jupiter.api.Test;
import tollgate.Codec.CounterKey;

class DenyCacheTest {

  private static final Duration SECOND = Duration.ofSeconds(1);
  private static final Duration MINUTE = Duration.ofMinutes(1);
  private static final Duration HOUR = Duration.ofHours(1);
  // A clock may begin anywhere, also just before its numbers wrap around.
  private static final long START = Long.MAX_VALUE - 1;

  private static Decision refusedFor(Duration time) {
    LimitStatus limit = new LimitStatus(0, "", 1, Unit.HOUR, 0, time, time, true, false, false, false);
    return new Decision(false, Duration.ZERO, time, List.of(limit), false, false, null);
  }

  private static CounterKey keyOf(Request request) {
    return Codec.countersOf(Codec.messageOf(request));
  }

  private static CounterKey key(String user) {
    return keyOf(Request.of("edge", Descriptor.of("user", user)));
  }

  private static Optional<Decision> denied(DenyCache cache, String user, long hits, Duration at) {
    return cache.denied(key(user), new long[] {hits}, START + at.toNanos());
  }

  private static boolean denies(DenyCache cache, String user, long hits, long at) {
    return denied(cache, user, hits, Duration.ofNanos(at)).isPresent();
  }

  private static void refuse(DenyCache cache, String user, long hits, Duration retryAfter, long at) {
    cache.begin(key(user));
    answer(cache, user, hits, retryAfter, at);
  }

  /** Ends a check that is under way. */
  private static void answer(DenyCache cache, String user, long hits, Duration retryAfter, long at) {
    cache.refuse(key(user), new long[] {hits}, refusedFor(retryAfter), START + at);
    cache.end(key(user));
  }

  @Test
  void refusedKey_untilRetryAfter_isDeniedLocally() {
    DenyCache cache = new DenyCache(10, HOUR);
    refuse(cache, "ann", 1, Duration.ofSeconds(3), 0);

    assertTrue(denies(cache, "ann", 1, 2_999_999_999L));
    assertFalse(denies(cache, "ann", 1, 3_000_000_000L));
    assertFalse(denies(cache, "bob", 1, 0));
  }

  @Test
  void localDenial_afterAWhile_hasTheRestOfItsTimes() {
    DenyCache cache = new DenyCache(10, HOUR);
    refuse(cache, "ann", 1, Duration.ofSeconds(3), 0);

    Decision decision = denied(cache, "ann", 1, SECOND).orElseThrow();

    assertTrue(decision.local());
    assertEquals(Duration.ofSeconds(2), decision.retryAfter());
    assertEquals(Duration.ofSeconds(2), decision.limits().get(0).retryAfter());
    assertEquals(Duration.ofSeconds(2), decision.limits().get(0).resetAfter());
  }

  @Test
  void refusedKey_withFewerHits_isAskedFor() {
    DenyCache cache = new DenyCache(10, HOUR);
    refuse(cache, "ann", 5, MINUTE, 0);

    assertFalse(denies(cache, "ann", 4, 0));
    assertTrue(denies(cache, "ann", 5, 0));
    assertTrue(denies(cache, "ann", 6, 0));
  }

  @Test
  void longRefusal_afterMaximum_isAskedForAgain() {
    DenyCache cache = new DenyCache(10, SECOND);
    refuse(cache, "ann", 1, HOUR, 0);

    assertTrue(denies(cache, "ann", 1, 999_999_999));
    assertFalse(denies(cache, "ann", 1, 1_000_000_000));
  }

  @Test
  void refusal_withoutRetryAfter_isNotCached() {
    DenyCache cache = new DenyCache(10, HOUR);
    refuse(cache, "ann", 1, Duration.ZERO, 0);

    assertFalse(denies(cache, "ann", 1, 0));
  }

  @Test
  void refund_ofRefusedKey_endsItsRefusals() {
    DenyCache cache = new DenyCache(10, HOUR);
    refuse(cache, "ann", 1, MINUTE, 0);
    cache.refund(key("ann"), START + 2);

    assertFalse(denies(cache, "ann", 1, 3));
  }

  @Test
  void refusal_sentBeforeARefund_isNotCached() {
    DenyCache cache = new DenyCache(10, HOUR);
    for (int i = 0; i < 3; i++) {
      cache.begin(key("ann"));
    }
    cache.refund(key("ann"), START + 2);

    // The server may have decided these before the refund, whenever they arrive.
    answer(cache, "ann", 1, MINUTE, 1);
    assertFalse(denies(cache, "ann", 1, 3));
    answer(cache, "ann", 7, MINUTE, 2);
    answer(cache, "ann", 1, MINUTE, 1);
    assertFalse(denies(cache, "ann", 1, 3));

    assertTrue(denies(cache, "ann", 7, 3));
  }

  @Test
  void refunds_ofUnknownKeys_keepRefusals() {
    DenyCache cache = new DenyCache(1, HOUR);
    refuse(cache, "ann", 1, MINUTE, 0);

    for (int i = 0; i < 10; i++) {
      cache.refund(key("other" + i), START + 1);
    }

    assertTrue(denies(cache, "ann", 1, 2));
  }

  @Test
  void fullCache_withAnotherKey_dropsTheOldest() {
    DenyCache cache = new DenyCache(3, HOUR);
    for (String user : List.of("0", "1", "2", "3")) {
      refuse(cache, user, 1, MINUTE, 0);
    }

    assertFalse(denies(cache, "0", 1, 0));
    for (String user : List.of("1", "2", "3")) {
      assertTrue(denies(cache, user, 1, 0));
    }
  }

  @Test
  void keys_ofDifferentCounters_differ() {
    Descriptor ab = Descriptor.of("a", "b");
    List<Request> requests =
        List.of(
            Request.of("edge", ab, Descriptor.of("c", "d")),
            Request.of("edge", ab.and("c", "d")),
            Request.of("edge", Descriptor.of("ab", "").and("c", "d")),
            Request.of("edg", Descriptor.of("ea", "b").and("c", "d")),
            Request.of("edge", ab),
            Request.of("edge", ab.withLimit(new Limit(5, Unit.MINUTE))));
    Set<CounterKey> keys = new HashSet<>();
    requests.forEach(request -> keys.add(keyOf(request)));

    assertEquals(requests.size(), keys.size());
    Request sameCounters = Request.of("edge", ab.withHits(3)).withHits(5).withRequestId("a");
    assertEquals(keyOf(Request.of("edge", ab)), keyOf(sameCounters));
  }
}
