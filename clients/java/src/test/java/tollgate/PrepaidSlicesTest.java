package tollgate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static tollgate.TollgateClientTest.RULES;
import static tollgate.testing.TollgateServer.PATIENCE;
import static tollgate.testing.TollgateServer.eventually;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.MethodDescriptor;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import tollgate.testing.Counts;
import tollgate.testing.Losing;
import tollgate.testing.TollgateServer;
import tollgate.v1.RateLimiterGrpc;

class PrepaidSlicesTest {

  // 100 pass.
  private static final Request RED = Request.of("edge", Descriptor.of("group", "red"));
  private static final Request BLUE = Request.of("edge", Descriptor.of("group", "blue"));
  private static final SliceOptions OF_20 = new SliceOptions(20, Duration.ofMinutes(1), 10);

  private final Counts counts = new Counts();
  private TollgateServer server;
  private TollgateClient client;

  @BeforeEach
  void start() {
    server = new TollgateServer(RULES);
    client = client(new Calls());
  }

  private TollgateClient client(ClientInterceptor interceptor) {
    ClientOptions.Builder options = ClientOptions.builder().timeout(PATIENCE).metrics(counts).denyCacheSize(0);
    options.channel(channel -> channel.intercept(interceptor));
    return new TollgateClient(server.address(), options.build());
  }

  /** Counts the calls of each method. */
  private static final class Calls implements ClientInterceptor {
    private final Map<MethodDescriptor<?, ?>, Integer> calls = new ConcurrentHashMap<>();

    @Override
    public <Q, A> ClientCall<Q, A> interceptCall(MethodDescriptor<Q, A> method, CallOptions options, Channel next) {
      calls.merge(method, 1, Integer::sum);
      return next.newCall(method, options);
    }

    int of(MethodDescriptor<?, ?> method) {
      return calls.getOrDefault(method, 0);
    }
  }

  @AfterEach
  void stop() {
    client.close();
    server.close();
  }

  private static Decision check(PrepaidSlices slices, Request request) {
    try {
      Decision decision = slices.check(request);
      assertNull(decision.noAnswer());
      return decision;
    } catch (InterruptedException error) {
      throw new AssertionError(error);
    }
  }

  private static boolean noAnswer(PrepaidSlices slices, Request request) {
    try {
      return slices.check(request).noAnswer() != null;
    } catch (InterruptedException error) {
      throw new AssertionError(error);
    }
  }

  private long remaining(Request request) {
    try {
      return client.peek(request).tightest().orElseThrow().remaining();
    } catch (InterruptedException error) {
      throw new AssertionError(error);
    }
  }

  /** Checks until the slice is there, and returns the number of checks, which have all passed. */
  private int checkUntilPrepaid(PrepaidSlices slices, Request request) {
    int[] passed = {0};
    eventually(
        "a check is prepaid",
        () -> {
          Decision decision = check(slices, request);
          assertTrue(decision.allowed());
          passed[0]++;
          return decision.local();
        });
    return passed[0];
  }

  @Test
  void racingChecks_ofTwoProcesses_passExactlyTheLimit() throws Exception {
    ExecutorService threads = Executors.newFixedThreadPool(8);
    try (PrepaidSlices one = new PrepaidSlices(client, OF_20);
        PrepaidSlices other = new PrepaidSlices(client, OF_20)) {
      Callable<Integer> checks =
          () -> {
            int passed = 0;
            for (int i = 0; i < 30; i++) {
              passed += check(i % 2 == 0 ? one : other, RED).allowed() ? 1 : 0;
            }
            return passed;
          };
      int passed = 0;
      for (Future<Integer> each : threads.invokeAll(Collections.nCopies(8, checks))) {
        passed += each.get();
      }
      one.close();
      other.close();

      assertEquals(100 - passed, remaining(RED));
      assertTrue(counts.of(Outcome.PREPAID) > 0);
      while (check(one, RED).allowed()) {
        passed++;
      }
      assertEquals(100, passed);
    } finally {
      threads.shutdownNow();
    }
  }

  @Test
  void slice_withoutServer_isSpentLocally() {
    try (PrepaidSlices slices = new PrepaidSlices(client, OF_20)) {
      checkUntilPrepaid(slices, RED);
      int sent = counts.sent().size();
      server.close();

      Decision decision = check(slices, RED);

      assertTrue(decision.allowed() && decision.local());
      assertEquals(100, decision.tightest().orElseThrow().requestsPerUnit());
      assertEquals(sent, counts.sent().size());
    }
  }

  @Test
  void prepaidChecks_ofAHotKey_reportWhatIsLeft() {
    try (PrepaidSlices slices = new PrepaidSlices(client, OF_20)) {
      int passed = checkUntilPrepaid(slices, RED);

      long left = check(slices, RED).tightest().orElseThrow().remaining();

      // Checks that were sent after the reservation are not in its answer.
      assertTrue(left >= 100 - passed - 1 && left < 100, () -> passed + " passed, " + left + " left");
    }
  }

  @Test
  void close_ofSlices_givesTheRestBack() {
    PrepaidSlices slices = new PrepaidSlices(client, OF_20);
    int passed = checkUntilPrepaid(slices, RED);

    slices.close();

    assertEquals(100 - passed, remaining(RED));
    assertFalse(check(slices, RED).local());
  }

  @Test
  void slice_atItsEnd_givesTheRestBack() {
    try (PrepaidSlices slices = new PrepaidSlices(client, new SliceOptions(20, Duration.ofMillis(300), 10))) {
      int passed = checkUntilPrepaid(slices, RED);

      eventually("the rest is given back", () -> remaining(RED) == 100 - passed);
    }
  }

  @Test
  void slice_ofAWindow_endsWithIt() {
    Request second = Request.of("edge", Descriptor.of("second", "any"));
    try (PrepaidSlices slices = new PrepaidSlices(client, new SliceOptions(500_000, Duration.ofHours(1), 10))) {
      checkUntilPrepaid(slices, second);
      server.close();

      eventually("the slice cannot be spent any more", () -> noAnswer(slices, second));
    }
  }

  @Test
  void slice_halfSpent_isRenewed() {
    try (PrepaidSlices slices = new PrepaidSlices(client, OF_20)) {
      int passed = 0;
      for (int slice = 0; slice < 3; slice++) {
        passed += checkUntilPrepaid(slices, RED);
        for (int i = 0; i < 20; i++) {
          assertTrue(check(slices, RED).allowed());
          passed++;
        }
      }
      slices.close();

      assertEquals(100 - passed, remaining(RED));
      assertTrue(counts.of(Outcome.PREPAID) > 20, counts.of(Outcome.PREPAID) + " of " + passed);
    }
  }

  @Test
  void slice_largerThanTheLimit_isLeftOut() {
    try (PrepaidSlices slices = new PrepaidSlices(client, new SliceOptions(101, Duration.ofMinutes(1), 10))) {
      int passed = 0;
      while (check(slices, RED).allowed()) {
        passed++;
      }

      assertEquals(100, passed);
      assertEquals(0, counts.of(Outcome.PREPAID));
    }
  }

  @Test
  void slice_thatLastsTooShort_isGivenBack() {
    Request second = Request.of("edge", Descriptor.of("second", "any"));
    Calls calls = new Calls();
    long begin = System.nanoTime();
    try (TollgateClient observed = client(calls);
        PrepaidSlices slices = new PrepaidSlices(observed, new SliceOptions(20, Duration.ofMillis(49), 10))) {
      eventually(
          "another slice is reserved",
          () -> {
            check(slices, second);
            return calls.of(RateLimiterGrpc.getReserveMethod()) == 2;
          });
    }

    assertTrue(System.nanoTime() - begin >= 1_000_000_000, "the second one comes after a pause");
    assertEquals(0, counts.of(Outcome.PREPAID));
    assertEquals(2, calls.of(RateLimiterGrpc.getSettleMethod()));
  }

  @Test
  void check_ofMoreThanASlice_reservesNone() {
    Calls calls = new Calls();
    try (TollgateClient observed = client(calls);
        PrepaidSlices slices = new PrepaidSlices(observed, OF_20)) {
      assertTrue(check(slices, RED.withHits(21)).allowed());
    }

    assertEquals(0, calls.of(RateLimiterGrpc.getReserveMethod()));
    assertEquals(79, remaining(RED));
  }

  @Test
  void check_withRequestId_asksTheServer() {
    try (PrepaidSlices slices = new PrepaidSlices(client, OF_20)) {
      checkUntilPrepaid(slices, RED);

      assertFalse(check(slices, RED.withRequestId("once")).local());
      assertTrue(check(slices, RED).local());
    }
  }

  @Test
  void settlement_whoseAnswersAreLost_isRepeated() {
    Losing losing = new Losing(RateLimiterGrpc.getSettleMethod(), 2);
    try (TollgateClient lossy = client(losing)) {
      PrepaidSlices slices = new PrepaidSlices(lossy, OF_20);
      int passed = checkUntilPrepaid(slices, RED);

      slices.close();

      assertEquals(2, losing.lost());
      assertEquals(0, counts.lost());
      assertEquals(100 - passed, remaining(RED));
    }
  }

  @Test
  void settlement_withoutServer_reportsLostHits() {
    Calls calls = new Calls();
    try (TollgateClient observed = client(calls)) {
      PrepaidSlices slices = new PrepaidSlices(observed, OF_20);
      checkUntilPrepaid(slices, RED);
      server.close();

      slices.close();

      assertEquals(3, calls.of(RateLimiterGrpc.getSettleMethod()));
      assertEquals(20 - counts.of(Outcome.PREPAID), counts.lost());
    }
  }

  @Test
  void keys_beyondTheirMaximum_askTheServer() {
    try (PrepaidSlices slices = new PrepaidSlices(client, new SliceOptions(20, Duration.ofMinutes(1), 1))) {
      checkUntilPrepaid(slices, RED);
      List<Boolean> local = new ArrayList<>();
      for (int i = 0; i < 20; i++) {
        local.add(check(slices, BLUE).local());
      }

      assertFalse(local.contains(true));
      assertEquals(80, remaining(BLUE));
    }
  }

  @Test
  void invalidRequest_ofASlice_isAnError() {
    try (PrepaidSlices slices = new PrepaidSlices(client, OF_20)) {
      for (Request invalid : List.of(Request.of(""), RED.withHits(-1), Request.of("\uD800"))) {
        assertThrows(InvalidRequestException.class, () -> slices.check(invalid));
      }
    }
    assertThrows(IllegalArgumentException.class, () -> new SliceOptions(0, Duration.ofMinutes(1), 1));
    assertThrows(IllegalArgumentException.class, () -> new SliceOptions(1, Duration.ZERO, 1));
    assertThrows(IllegalArgumentException.class, () -> new SliceOptions(1, Duration.ofMinutes(1), 0));
  }
}
