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
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import tollgate.testing.Counts;
import tollgate.testing.Gate;
import tollgate.testing.TollgateServer;

class TollgateClientTest {

  static final String RULES =
      """
      domain: edge
      descriptors:
        - key: user
          rate_limit: {name: of-user, unit: hour, requests_per_unit: 3, algorithm: sliding_log}
        - key: group
          rate_limit: {unit: hour, requests_per_unit: 100, algorithm: sliding_log}
        - key: second
          rate_limit: {unit: second, requests_per_unit: 1000000, algorithm: fixed_window}
        - key: turn
          rate_limit: {unit: minute, requests_per_unit: 60, algorithm: leaky_queue, burst: 5}
        - key: shadow
          rate_limit: {unit: hour, requests_per_unit: 0}
          shadow_mode: true
        - key: candidate
          rate_limit: {unit: hour, requests_per_unit: 3, candidate: {unit: hour, requests_per_unit: 0}}
      """;
  private static final int LARGEST = 4 << 20;

  private final Counts counts = new Counts();
  private final Gate gate = new Gate();
  private final List<AutoCloseable> open = new ArrayList<>();

  @AfterEach
  void closeAll() throws Exception {
    for (AutoCloseable each : open) {
      each.close();
    }
  }

  private <T extends AutoCloseable> T closing(T resource) {
    open.add(resource);
    return resource;
  }

  private TollgateServer server() {
    return closing(new TollgateServer(RULES));
  }

  private ClientOptions.Builder options() {
    return ClientOptions.builder().timeout(PATIENCE).metrics(counts);
  }

  private ClientOptions.Builder gated() {
    return options().maxCalls(1).channel(channel -> channel.intercept(gate));
  }

  private TollgateClient client(TollgateServer server, ClientOptions.Builder options) {
    return closing(new TollgateClient(server.address(), options.build()));
  }

  private static Request request(String key, String value) {
    return Request.of("edge", Descriptor.of(key, value));
  }

  /** A decision by the server or the deny cache. */
  private static Decision check(TollgateClient client, Request request) throws InterruptedException {
    return answered(client.check(request));
  }

  private static Decision answered(Decision decision) {
    assertNull(decision.noAnswer());
    return decision;
  }

  /** Sends a check in another thread, and waits until the gate holds it. */
  private CompletableFuture<Decision> heldCheck(TollgateClient client) {
    CompletableFuture<Decision> first =
        CompletableFuture.supplyAsync(() -> client.checkAsync(request("group", "red")))
            .thenCompose(decision -> decision);
    eventually("the first check is sent at once", () -> gate.waiting() == 1);
    return first;
  }

  @Test
  void check_upToItsLimit_saysAllOfTheLimit() throws Exception {
    TollgateClient client = client(server(), options());

    Decision allowed = check(client, request("user", "ann").withHits(3));
    Decision denied = check(client, request("user", "ann"));

    Duration hour = Duration.ofHours(1);
    LimitStatus whole = new LimitStatus(0, "of-user", 3, Unit.HOUR, 0, hour, Duration.ZERO, false, false, false, false);
    assertEquals(new Decision(true, Duration.ZERO, Duration.ZERO, List.of(whole), false, false, null), allowed);
    LimitStatus limit = denied.limits().get(0);
    assertFalse(denied.allowed() || denied.local() || denied.degraded());
    assertTrue(limit.refused());
    assertTrue(denied.retryAfter().compareTo(Duration.ZERO) > 0 && denied.retryAfter().compareTo(hour) <= 0);
    assertEquals(denied.retryAfter(), limit.retryAfter());
  }

  @Test
  void concurrentChecks_ofOneKey_passExactlyTheLimit() {
    TollgateClient client = client(server(), options());
    int callers = 1000;

    List<CompletableFuture<Decision>> checks =
        Collections.nCopies(callers, request("group", "red")).parallelStream().map(client::checkAsync).toList();
    long passed = checks.stream().map(CompletableFuture::join).filter(each -> answered(each).allowed()).count();

    assertEquals(100, passed);
    int allowed = counts.of(Outcome.ALLOWED);
    int denied = counts.of(Outcome.DENIED);
    assertEquals(100, allowed);
    assertEquals(callers, allowed + denied + counts.of(Outcome.DENIED_LOCALLY));
    assertEquals(allowed + denied, counts.sent().stream().mapToInt(batch -> batch).sum());
  }

  @Test
  void checks_whileCallsAreUnderWay_areSentTogether() {
    TollgateClient client = client(server(), gated());
    List<CompletableFuture<Decision>> checks = new ArrayList<>(List.of(heldCheck(client)));
    for (int i = 0; i < 300; i++) {
      checks.add(client.checkAsync(request("group", "red")));
    }

    gate.open();
    checks.forEach(check -> answered(check.join()));

    assertEquals(List.of(1, 256, 44), counts.sent());
  }

  @Test
  void largeChecks_beyondBytesOfABatch_areSentApart() {
    TollgateClient client = client(server(), gated());
    CompletableFuture<Decision> first = heldCheck(client);
    Request large = request("user", "x".repeat(600_000));
    List<CompletableFuture<Decision>> checks = List.of(client.checkAsync(large), client.checkAsync(large));

    gate.open();
    answered(first.join());
    checks.forEach(check -> answered(check.join()));

    assertEquals(List.of(1, 1, 1), counts.sent());
  }

  @Test
  void largestRequest_ofAMessage_isDecided() throws Exception {
    assertTrue(check(client(server(), options()), request("user", "x".repeat(LARGEST - 64))).allowed());
  }

  @Test
  void check_beyondFullQueue_getsTheDefault() throws Exception {
    TollgateClient client = client(server(), gated().maxQueue(2).onNoAnswer(OnNoAnswer.DENY));
    List<CompletableFuture<Decision>> checks = new ArrayList<>(List.of(heldCheck(client)));
    checks.add(client.checkAsync(request("group", "red")));
    checks.add(client.checkAsync(request("group", "red")));

    Decision decision = client.check(request("group", "red"));

    assertFalse(decision.allowed());
    assertNotNull(decision.noAnswer());
    assertEquals(1, counts.of(Outcome.QUEUE_FULL));
    gate.open();
    checks.forEach(check -> answered(check.join()));
  }

  @Test
  void canceledCheck_inQueue_chargesNothing() throws Exception {
    TollgateClient client = client(server(), gated());
    CompletableFuture<Decision> first = heldCheck(client);
    CompletableFuture<Decision> ofFuture = client.checkAsync(request("group", "red"));
    Context.CancellableContext caller = Context.current().withCancellation();
    CompletableFuture<Decision> ofContext = caller.call(() -> client.checkAsync(request("group", "red")));
    Thread thread =
        new Thread(() -> assertThrows(InterruptedException.class, () -> client.check(request("group", "red"))));
    thread.start();
    eventually("three checks wait", () -> client.queued() == 3);

    ofFuture.cancel(true);
    caller.cancel(null);
    thread.interrupt();

    eventually("they wait no longer", () -> client.queued() == 0);
    thread.join();
    assertThrows(CancellationException.class, ofContext::join);
    gate.open();
    answered(first.join());
    assertEquals(List.of(1), counts.sent());
    assertEquals(3, counts.of(Outcome.FAILED));
  }

  @Test
  void refusedKey_withoutServer_isDeniedLocally() throws Exception {
    TollgateServer server = server();
    TollgateClient client = client(server, options().denyCacheMax(Duration.ofHours(1)));
    for (int i = 0; i < 4; i++) {
      check(client, request("user", "ann"));
    }
    server.close();

    Decision decision = check(client, request("user", "ann"));

    assertFalse(decision.allowed());
    assertTrue(decision.local());
    assertFalse(decision.retryAfter().isZero());
    assertEquals(1, counts.of(Outcome.DENIED_LOCALLY));
    assertNotNull(client.check(request("user", "bob")).noAnswer());
  }

  @Test
  void refusal_thatNeverEnds_isNotCached() throws Exception {
    TollgateClient client = client(server(), options().denyCacheMax(Duration.ofHours(1)));
    for (int i = 0; i < 2; i++) {
      Decision decision = check(client, request("user", "ann").withHits(4));

      assertFalse(decision.allowed() || decision.local());
      assertEquals(Duration.ZERO, decision.retryAfter());
    }
  }

  @Test
  void denyCache_turnedOff_asksTheServer() throws Exception {
    TollgateClient client = client(server(), options().denyCacheSize(0));
    for (int i = 0; i < 5; i++) {
      check(client, request("user", "ann"));
    }

    assertEquals(3, counts.of(Outcome.ALLOWED));
    assertEquals(2, counts.of(Outcome.DENIED));
  }

  @Test
  void invalidRequest_byEachCall_isAnError() throws Exception {
    TollgateClient client = client(server(), options());
    Descriptor ann = Descriptor.of("user", "ann");
    Map<String, Request> invalid =
        Map.of(
            "no domain", Request.of("", ann),
            "no descriptors", Request.of("edge"),
            "no unit", Request.of("edge", ann.withLimit(new Limit(1, Unit.UNKNOWN))),
            "a limit above 32 bits", Request.of("edge", ann.withLimit(new Limit(1L << 32, Unit.DAY))),
            "too large", request("user", "x".repeat(LARGEST)),
            "not Unicode", request("user", "\uD800"),
            "a domain that is not Unicode", Request.of("\uDC00", ann),
            "negative hits", Request.of("edge", ann).withHits(-1),
            "negative hits of a descriptor", Request.of("edge", ann.withHits(-1)));

    invalid.forEach(
        (what, request) -> {
          assertThrows(InvalidRequestException.class, () -> client.check(request), what);
          assertThrows(InvalidRequestException.class, () -> client.peek(request), what);
          assertThrows(InvalidRequestException.class, () -> client.refund(request), what);
        });
    assertEquals(invalid.size(), counts.of(Outcome.FAILED));
  }

  @Test
  void invalidRequest_inABatch_failsAlone() {
    TollgateClient client = client(server(), gated());
    CompletableFuture<Decision> first = heldCheck(client);
    // So large that the server refuses the call and not only the request.
    Request crowded = new Request("edge", Collections.nCopies(1000, Descriptor.of("user", "ann")), 1, null);
    List<CompletableFuture<Decision>> invalid =
        List.of(client.checkAsync(Request.of("edge")), client.checkAsync(crowded));
    CompletableFuture<Decision> last = client.checkAsync(request("group", "red"));

    gate.open();

    answered(first.join());
    answered(last.join());
    for (CompletableFuture<Decision> each : invalid) {
      Exception error = assertThrows(Exception.class, each::get);
      assertTrue(error.getCause() instanceof InvalidRequestException, error::toString);
    }
    assertEquals(2, counts.of(Outcome.ALLOWED));
    assertEquals(2, counts.of(Outcome.FAILED));
  }

  @Test
  void refund_ofRefusedKey_letsItPass() throws Exception {
    TollgateClient client = client(server(), options().denyCacheMax(Duration.ofHours(1)));
    for (int i = 0; i < 3; i++) {
      check(client, request("user", "ann"));
    }
    assertFalse(check(client, request("user", "ann")).local());
    assertTrue(check(client, request("user", "ann")).local());

    Decision refund = client.refund(request("user", "ann"));

    assertTrue(refund.allowed());
    assertEquals(1, refund.tightest().orElseThrow().remaining());
    assertTrue(check(client, request("user", "ann")).allowed());
  }

  @Test
  void repeatedCheck_withRequestId_isChargedOnce() throws Exception {
    TollgateClient client = client(server(), options());
    Request once = request("user", "ann").withRequestId("once");

    for (int i = 0; i < 5; i++) {
      assertTrue(check(client, once).allowed());
    }

    assertEquals(2, answered(client.peek(once)).tightest().orElseThrow().remaining(), "a peek ignores the id");
    client.refund(once);
    client.refund(once);
    assertEquals(3, answered(client.peek(once)).tightest().orElseThrow().remaining(), "a refund ignores the id");
    Request tooLong = request("user", "ann").withRequestId("x".repeat(64));
    assertThrows(InvalidRequestException.class, () -> client.check(tooLong));
    assertThrows(InvalidRequestException.class, () -> client.check(once.withRequestId("\uD800")));
  }

  @Test
  void refusedKey_withRequestId_isDecidedByTheServer() throws Exception {
    TollgateClient client = client(server(), options().denyCacheMax(Duration.ofHours(1)));
    Request ann = request("user", "ann");
    for (int i = 0; i < 3; i++) {
      check(client, ann);
    }
    assertFalse(check(client, ann.withRequestId("first")).local());
    assertTrue(check(client, ann).local(), "the refusal is cached");

    Decision decision = check(client, ann.withRequestId("second"));

    assertFalse(decision.allowed() || decision.local());
  }

  @Test
  void limits_inShadowOrWithCandidate_sayWhatWouldBeRefused() throws Exception {
    TollgateClient client = client(server(), options());

    LimitStatus shadow = check(client, request("shadow", "ann")).limits().get(0);
    LimitStatus candidate = check(client, request("candidate", "ann")).limits().get(0);

    assertTrue(shadow.refusedInShadow() && candidate.refusedByCandidate());
    assertFalse(shadow.refusedByCandidate() || candidate.refusedInShadow());
    assertFalse(shadow.refused() || candidate.refused() || shadow.degraded() || candidate.degraded());
  }

  @Test
  void peek_ofALimit_chargesNothing() throws Exception {
    TollgateClient client = client(server(), options());
    for (int i = 0; i < 5; i++) {
      Decision decision = answered(client.peek(request("user", "ann").withHits(2)));

      assertTrue(decision.allowed());
      assertEquals(3, decision.tightest().orElseThrow().remaining());
    }
  }

  @Test
  void limitAndHits_inTheRequest_replaceThoseOfTheRule() throws Exception {
    TollgateClient client = client(server(), options());
    Descriptor descriptor = Descriptor.of("user", "ann").withLimit(new Limit(10, Unit.DAY)).withHits(7);

    LimitStatus limit = check(client, Request.of("edge", descriptor)).limits().get(0);

    assertEquals(10, limit.requestsPerUnit());
    assertEquals(Unit.DAY, limit.unit());
    assertEquals(3, limit.remaining());
    assertEquals("", limit.rule());
  }

  @Test
  void delayedRequest_ofAQueue_isAllowedWithItsDelay() throws Exception {
    TollgateClient client = client(server(), options());

    Decision first = check(client, request("turn", "a"));
    Decision second = check(client, request("turn", "a"));

    assertTrue(first.allowed() && second.allowed());
    assertEquals(Duration.ZERO, first.delay());
    assertTrue(second.delay().compareTo(Duration.ZERO) > 0);
    assertTrue(second.delay().compareTo(Duration.ofSeconds(1)) <= 0);
  }

  @Test
  void option_outOfItsRange_isAnError() {
    Duration negative = Duration.ofNanos(-1);
    List<ClientOptions.Builder> wrong =
        List.of(
            options().timeout(Duration.ZERO),
            options().denyCacheMax(negative),
            options().maxCalls(0),
            options().maxBatch(0),
            options().maxQueue(0),
            options().denyCacheSize(-1));

    wrong.forEach(each -> assertThrows(IllegalArgumentException.class, each::build));
  }
}
