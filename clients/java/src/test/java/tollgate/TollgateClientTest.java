package tollgate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static tollgate.testing.TollgateServer.PATIENCE;
import static tollgate.testing.TollgateServer.eventually;

import io.grpc.Context;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.CancellationException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import tollgate.testing.Counts;
import tollgate.testing.TollgateServer;

/** A client and slices with a real server: what the vectors cannot say. */
class TollgateClientTest {

  static final String RULES =
      """
      domain: edge
      descriptors:
        - key: user
          rate_limit: {name: of-user, unit: hour, requests_per_unit: 3, algorithm: sliding_log}
        - key: group
          rate_limit: {name: of-group, unit: hour, requests_per_unit: 1000, algorithm: sliding_log}
        - key: shadow
          rate_limit: {unit: hour, requests_per_unit: 0}
          shadow_mode: true
        - key: candidate
          rate_limit: {unit: hour, requests_per_unit: 3, candidate: {unit: hour, requests_per_unit: 0}}
      """;
  private static final Request ANN = request("user", "ann");
  // 1000 pass.
  private static final Request RED = request("group", "red");
  private static final SliceOptions OF_20 = new SliceOptions().withHits(20).withTtl(Duration.ofMinutes(1));

  private final Counts counts = new Counts();
  private TollgateServer server;
  private TollgateClient client;

  @BeforeEach
  void start() {
    server = new TollgateServer(RULES);
    client = new TollgateClient(server.address(), new ClientOptions().timeout(PATIENCE).metrics(counts));
  }

  @AfterEach
  void stop() {
    client.close();
    server.close();
  }

  private static Request request(String key, String value) {
    return Request.of("edge", Descriptor.of(key, value));
  }

  private long remaining(Request request) {
    try {
      Decision decision = client.peek(request);
      assertNull(decision.noAnswer());
      return decision.tightest().orElseThrow().remaining();
    } catch (InterruptedException error) {
      throw new AssertionError(error);
    }
  }

  private static Decision check(Checker checker, Request request) {
    try {
      return checker.check(request);
    } catch (InterruptedException error) {
      throw new AssertionError(error);
    }
  }

  /** The number of checks by several threads that are allowed. */
  private static int passed(int each, Checker... checkers) throws Exception {
    ExecutorService threads = Executors.newFixedThreadPool(8);
    try {
      Callable<Integer> checks =
          () -> {
            int passed = 0;
            for (int i = 0; i < each; i++) {
              passed += check(checkers[i % checkers.length], RED).allowed() ? 1 : 0;
            }
            return passed;
          };
      int passed = 0;
      for (Future<Integer> future : threads.invokeAll(Collections.nCopies(8, checks))) {
        passed += future.get();
      }
      return passed;
    } finally {
      threads.shutdownNow();
    }
  }

  @Test
  void concurrentChecks_ofOneKey_passExactlyTheLimit() throws Exception {
    assertEquals(1000, passed(200, client));
  }

  @Test
  void check_upToItsLimit_saysAllOfTheLimit() throws Exception {
    Descriptor own = Descriptor.of("user", "bob").withLimit(new Limit(7, Unit.DAY)).withHits(2);
    List<LimitStatus> limits =
        client.check(Request.of("edge", Descriptor.of("user", "ann"), own).withHits(3)).limits();
    Decision denied = client.check(ANN);

    Duration hour = Duration.ofHours(1);
    LimitStatus whole = new LimitStatus(0, "of-user", 3, Unit.HOUR, 0, hour, Duration.ZERO, false, false, false, false);
    assertEquals(whole, limits.get(0));
    Duration reset = limits.get(1).resetAfter();
    LimitStatus ofCaller = new LimitStatus(1, "", 7, Unit.DAY, 5, reset, Duration.ZERO, false, false, false, false);
    assertEquals(ofCaller, limits.get(1));
    LimitStatus limit = denied.limits().get(0);
    assertFalse(denied.allowed() || denied.degraded());
    assertTrue(limit.refused() && limit.retryAfter().compareTo(Duration.ZERO) > 0);
    assertEquals(denied.retryAfter(), limit.retryAfter());
  }

  @Test
  void limits_inShadowOrWithCandidate_sayWhatWouldBeRefused() throws Exception {
    LimitStatus shadow = client.check(request("shadow", "ann")).limits().get(0);
    LimitStatus candidate = client.check(request("candidate", "ann")).limits().get(0);

    assertTrue(shadow.refusedInShadow() && candidate.refusedByCandidate());
    assertFalse(shadow.refusedByCandidate() || candidate.refusedInShadow());
    assertFalse(shadow.refused() || candidate.refused());
  }

  @Test
  void invalidRequest_byEachCall_isAnError() throws Exception {
    Descriptor ann = Descriptor.of("user", "ann");
    Map<String, Request> invalid =
        Map.of(
            "no domain", Request.of("", ann),
            "no descriptors", Request.of("edge"),
            "no unit", Request.of("edge", ann.withLimit(new Limit(1, Unit.UNKNOWN))),
            "a limit above 32 bits", Request.of("edge", ann.withLimit(new Limit(1L << 32, Unit.DAY))),
            "not Unicode", request("user", "\uD800"),
            "a domain that is not Unicode", Request.of("\uDC00", ann),
            "negative hits", ANN.withHits(-1),
            "negative hits of a descriptor", Request.of("edge", ann.withHits(-1)));

    try (PrepaidSlices slices = new PrepaidSlices(client, OF_20)) {
      invalid.forEach(
          (what, request) -> {
            assertThrows(InvalidRequestException.class, () -> client.check(request), what);
            assertThrows(InvalidRequestException.class, () -> slices.check(request), what);
            assertThrows(InvalidRequestException.class, () -> client.peek(request), what);
            assertThrows(InvalidRequestException.class, () -> client.refund(request), what);
          });
    }
    assertThrows(InvalidRequestException.class, () -> client.check(ANN.withRequestId("x".repeat(64))));
    assertThrows(InvalidRequestException.class, () -> client.check(ANN.withRequestId("\uD800")));
    Reservation reservation = client.reserve(ANN, new Terms());
    assertThrows(InvalidRequestException.class, () -> client.settle(reservation, -1));
    assertEquals(Map.of("failed", 2 * invalid.size() + 2), counts.outcomes());
  }

  @Test
  void settlement_ofAReservation_saysAllOfEachLimit() throws Exception {
    Descriptor one = Descriptor.of("user", "ann").withHits(1);
    Request call = Request.of("edge", one, Descriptor.of("group", "red")).withHits(800);
    Reservation reservation = client.reserve(call, new Terms());
    assertEquals(200, remaining(RED));

    Settlement settled = client.settle(reservation, 1200);

    Settlement.SettledLimit group = settled.limits().get(1);
    Duration reset = group.resetAfter();
    assertEquals(
        new Settlement.SettledLimit(1, "of-group", Settlement.Outcome.OPEN, 800, 200, 0, reset), group);
    assertFalse(settled.unknown());
    assertEquals(List.of(0, 1L), List.of(settled.limits().get(0).descriptor(), settled.limits().get(0).reserved()));
    assertEquals(settled, client.cancel(reservation), "a repeated call answers as the first one");
  }

  @ParameterizedTest
  @EnumSource
  void expiredReservation_byItsTerms_isReleasedOrCharged(OnExpiry onExpiry) throws Exception {
    Terms soon = new Terms(Duration.ofMillis(50), onExpiry);
    Reservation reservation = client.reserve(RED.withHits(800), soon);
    // The later one, so that both have expired when it has.
    Request other = request("group", "other");
    client.reserve(other, soon.withOnExpiry(OnExpiry.RELEASE));
    eventually("it has expired", () -> remaining(other) == 1000);

    boolean isCharged = onExpiry == OnExpiry.CHARGE;
    assertEquals(isCharged ? 200 : 1000, remaining(RED));
    Settlement.Outcome outcome = isCharged ? Settlement.Outcome.CHARGED : Settlement.Outcome.RELEASED;
    assertEquals(outcome, client.settle(reservation, 1).limits().get(0).outcome());
    assertEquals(999, remaining(RED));
  }

  @Test
  void settlement_ofCanceledCaller_isSentNevertheless() throws Exception {
    Reservation reservation = client.reserve(RED.withHits(800), new Terms());
    Context.CancellableContext caller = Context.current().withCancellation();
    caller.cancel(null);

    caller.call(() -> client.settle(reservation, 300));

    assertEquals(700, remaining(RED));
  }

  @Test
  void check_ofCanceledCaller_isNotSent() throws Exception {
    Context.CancellableContext caller = Context.current().withCancellation();
    caller.cancel(null);

    assertThrows(CancellationException.class, () -> caller.call(() -> client.check(RED)));

    assertEquals(1000, remaining(RED));
    assertEquals(List.of(), counts.sent());
  }

  @Test
  void awaitTurn_forDelay_endsWithItOrWithTheContext() throws Exception {
    Duration delay = Duration.ofHours(1);
    Decision delayed =
        new Decision(true, delay, Duration.ZERO, List.of(), false, Source.SERVER, null, "");
    Context.CancellableContext caller = Context.current().withCancellation();
    caller.cancel(null);

    Callable<Void> await =
        () -> {
          delayed.awaitTurn();
          return null;
        };

    assertThrows(CancellationException.class, () -> caller.call(await));
  }

  /** Checks until the slice is there, and returns the number of checks. */
  private int checkUntilPrepaid(PrepaidSlices slices) {
    int[] passed = {0};
    eventually(
        "a check is prepaid",
        () -> {
          passed[0]++;
          return check(slices, RED).source() == Source.PREPAID;
        });
    return passed[0];
  }

  @Test
  void racingSlices_ofTwoProcesses_passExactlyTheLimit() throws Exception {
    try (PrepaidSlices one = new PrepaidSlices(client, OF_20);
        PrepaidSlices other = new PrepaidSlices(client, OF_20)) {
      int passed = passed(100, one, other);
      one.close();
      other.close();

      assertEquals(1000 - passed, remaining(RED));
      assertTrue(counts.outcomes().get("prepaid") > 0);
      while (check(one, RED).allowed()) {
        passed++;
      }
      assertEquals(1000, passed);
    }
  }

  @Test
  void slice_atItsEnd_givesTheRestBack() {
    try (PrepaidSlices slices = new PrepaidSlices(client, OF_20.withTtl(Duration.ofMillis(300)))) {
      int passed = checkUntilPrepaid(slices);

      eventually("the rest is given back", () -> remaining(RED) == 1000 - passed);
    }
  }

  @Test
  void close_ofSlices_givesTheRestBack() {
    PrepaidSlices slices = new PrepaidSlices(client, OF_20);
    int passed = checkUntilPrepaid(slices);

    slices.close();

    assertEquals(1000 - passed, remaining(RED));
    assertEquals(Source.SERVER, check(slices, RED).source());
  }

  @Test
  void settlement_withoutServer_reportsLostHits() {
    PrepaidSlices slices = new PrepaidSlices(client, OF_20);
    checkUntilPrepaid(slices);
    server.close();

    slices.close();

    assertEquals(19, counts.lost());
  }

  @Test
  void warmUp_withoutServer_returns() throws Exception {
    server.close();

    client.warmUp();

    assertNotNull(client.check(ANN).noAnswer());
  }
}
