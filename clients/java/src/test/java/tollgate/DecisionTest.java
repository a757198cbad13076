package tollgate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Context;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.concurrent.CancellationException;
import org.junit.jupiter.api.Test;
import tollgate.v1.Answer;

class DecisionTest {

  private static LimitStatus limit(String rule, long remaining, boolean refused, int resetSeconds) {
    Duration reset = Duration.ofSeconds(resetSeconds);
    return new LimitStatus(0, rule, 10, Unit.HOUR, remaining, reset, Duration.ZERO, refused, false, false, false);
  }

  private static Decision decision(boolean allowed, LimitStatus... limits) {
    return new Decision(allowed, Duration.ZERO, Duration.ZERO, List.of(limits), false, false, null);
  }

  private static Decision delayed(Duration delay) {
    return new Decision(true, delay, Duration.ZERO, List.of(), false, false, null);
  }

  @Test
  void tightestLimit_ofSeveral_isTheOneToReport() {
    LimitStatus five = limit("five", 5, false, 0);
    LimitStatus two = limit("two", 2, false, 0);
    LimitStatus twoAsWell = limit("two as well", 2, false, 9);
    LimitStatus none = limit("none", 0, false, 0);
    LimitStatus refuses = limit("refuses", 2, true, 1);
    LimitStatus refusesLonger = limit("refuses longer", 2, true, 2);

    assertEquals("two", decision(false, five, two).tightest().orElseThrow().rule());
    assertEquals("two", decision(false, two, twoAsWell).tightest().orElseThrow().rule());
    assertEquals("refuses", decision(false, none, refuses).tightest().orElseThrow().rule());
    assertEquals("none", decision(true, none, refuses).tightest().orElseThrow().rule(), "in shadow mode");
    assertEquals("refuses longer", decision(false, refuses, refusesLonger).tightest().orElseThrow().rule());
    assertTrue(decision(true).tightest().isEmpty());
  }

  @Test
  void headers_ofADecision_haveWholeSecondsRoundedUp() {
    Duration nanosecond = Duration.ofNanos(1);
    LimitStatus limit = new LimitStatus(0, "", 10, Unit.HOUR, 0, nanosecond, nanosecond, true, false, false, false);
    Duration wait = Duration.ofMillis(2001);
    Decision denied = new Decision(false, Duration.ZERO, wait, List.of(limit), false, false, null);

    Map<String, String> headers =
        Map.of("RateLimit-Limit", "10", "RateLimit-Remaining", "0", "RateLimit-Reset", "1");
    assertEquals(headers, denied.limitHeaders());
    assertEquals(OptionalLong.of(3), denied.retryAfterSeconds());
    assertEquals(Map.of(), decision(true).limitHeaders());
    assertEquals(OptionalLong.empty(), decision(false, limit).retryAfterSeconds());
  }

  @Test
  void degradedLimit_ofAnAnswer_isMarked() {
    tollgate.v1.LimitStatus degraded = tollgate.v1.LimitStatus.newBuilder().setDegraded(true).build();
    Answer.Builder answer = Answer.newBuilder().setVerdict(Answer.Verdict.ALLOWED).setDegraded(true);

    Decision decision =
        Codec.decisionOf(answer.addLimits(degraded).addLimits(tollgate.v1.LimitStatus.newBuilder()).build());

    assertTrue(decision.degraded());
    assertEquals(List.of(true, false), decision.limits().stream().map(LimitStatus::degraded).toList());
  }

  @Test
  void awaitTurn_forDelay_endsWithItOrWithTheContext() throws Exception {
    Duration delay = Duration.ofMillis(1);
    long begin = System.nanoTime();
    delayed(delay).awaitTurn();
    assertTrue(System.nanoTime() - begin >= delay.toNanos());

    Context.CancellableContext ended = Context.current().withCancellation();
    ended.cancel(null);
    Context before = ended.attach();
    try {
      assertThrows(CancellationException.class, () -> delayed(Duration.ofHours(1)).awaitTurn());
    } finally {
      ended.detach(before);
    }
  }
}
