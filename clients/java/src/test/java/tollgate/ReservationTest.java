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
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import tollgate.testing.TollgateServer;

class ReservationTest {

  private static final String RULES =
      """
      domain: models
      descriptors:
        - key: requests
          rate_limit: {unit: hour, requests_per_unit: 5, algorithm: sliding_log}
        - key: tokens
          rate_limit: {name: of-tokens, unit: hour, requests_per_unit: 1000, algorithm: sliding_log}
      """;
  private static final HoldTerms MINUTE = HoldTerms.releasedAfter(Duration.ofMinutes(1));
  private static final Request TOKENS = Request.of("models", Descriptor.of("tokens", "ann"));
  private static final Request REQUESTS = Request.of("models", Descriptor.of("requests", "ann"));
  // A call of a model is one request, and as many tokens as it turns out.
  private static final Request CALL =
      Request.of("models", Descriptor.of("requests", "ann").withHits(1), Descriptor.of("tokens", "ann"));

  private TollgateServer server;
  private TollgateClient client;

  @BeforeEach
  void start() {
    server = new TollgateServer(RULES);
    client = client(OnNoAnswer.ALLOW);
  }

  @AfterEach
  void stop() {
    client.close();
    server.close();
  }

  private TollgateClient client(OnNoAnswer fallback) {
    ClientOptions.Builder options = ClientOptions.builder().timeout(PATIENCE).onNoAnswer(fallback);
    return new TollgateClient(server.address(), options.denyCacheMax(Duration.ofHours(1)).build());
  }

  private long remaining(Request request) throws InterruptedException {
    Decision decision = client.peek(request);
    assertNull(decision.noAnswer());
    return decision.tightest().orElseThrow().remaining();
  }

  @Test
  void settlement_ofLessThanReserved_givesTheRestBack() throws Exception {
    Reservation reservation = client.reserve(CALL.withHits(800), MINUTE);
    assertTrue(reservation.decision().allowed());
    assertEquals(200, remaining(TOKENS));

    Settlement settled = client.settle(reservation, 300);

    assertFalse(settled.unknown());
    assertEquals(List.of(0, 1), settled.limits().stream().map(Settlement.SettledLimit::descriptor).toList());
    Settlement.SettledLimit tokens = settled.limits().get(1);
    assertEquals("of-tokens", tokens.rule());
    assertEquals(Settlement.Outcome.OPEN, tokens.outcome());
    assertEquals(800, tokens.reserved());
    assertEquals(0, tokens.notCharged());
    assertEquals(700, tokens.remaining());
    assertEquals(700, remaining(TOKENS));
    assertEquals(4, remaining(REQUESTS));
    assertEquals(settled, client.settle(reservation, 999), "a repeated settlement answers as the first one");
  }

  @Test
  void settlement_ofMoreThanTheLimit_saysWhatIsNotCharged() throws Exception {
    Settlement settled = client.settle(client.reserve(TOKENS.withHits(800), MINUTE), 1200);

    assertEquals(200, settled.limits().get(0).notCharged());
    assertEquals(0, remaining(TOKENS));
  }

  @Test
  void refusedReservation_ofOneLimit_holdsNothing() throws Exception {
    Reservation refused = client.reserve(CALL.withHits(1001), MINUTE);

    assertFalse(refused.decision().allowed());
    assertEquals("", refused.id());
    assertEquals(1000, remaining(TOKENS));
    assertEquals(5, remaining(REQUESTS));
    assertEquals(new Settlement(List.of(), false), client.settle(refused, 7));
    assertEquals(1000, remaining(TOKENS));
  }

  @Test
  void cancellation_ofAReservation_givesAllBack() throws Exception {
    Reservation reservation = client.reserve(CALL.withHits(800), MINUTE);

    Settlement canceled = client.cancel(reservation);

    assertEquals(800, canceled.limits().get(1).reserved());
    assertEquals(1000, remaining(TOKENS));
    assertEquals(5, remaining(REQUESTS));
  }

  @Test
  void expiredReservation_byItsTerms_isReleasedOrCharged() throws Exception {
    Duration soon = Duration.ofMillis(50);
    Request bob = Request.of("models", Descriptor.of("tokens", "bob")).withHits(800);
    Reservation charged = client.reserve(bob, HoldTerms.chargedAfter(soon));
    // The later one, so that both have expired when it has.
    Reservation released = client.reserve(TOKENS.withHits(800), HoldTerms.releasedAfter(soon));

    eventually("ann's tokens are given back", () -> {
      try {
        return remaining(TOKENS) == 1000;
      } catch (InterruptedException error) {
        throw new AssertionError(error);
      }
    });

    assertEquals(200, remaining(bob));
    assertEquals(Settlement.Outcome.RELEASED, client.settle(released, 1).limits().get(0).outcome());
    assertEquals(Settlement.Outcome.CHARGED, client.settle(charged, 1).limits().get(0).outcome());
    assertEquals(999, remaining(TOKENS));
    assertEquals(999, remaining(bob));
  }

  @Test
  void settlement_ofCanceledCaller_isSentNevertheless() throws Exception {
    Reservation reservation = client.reserve(TOKENS.withHits(800), MINUTE);
    Context.CancellableContext caller = Context.current().withCancellation();
    caller.cancel(null);

    caller.call(() -> client.settle(reservation, 300));

    assertEquals(700, remaining(TOKENS));
  }

  @Test
  void settlement_afterLocalDenials_letsRequestsPass() throws Exception {
    Reservation reservation = client.reserve(TOKENS.withHits(1000), MINUTE);
    client.check(TOKENS);
    assertTrue(client.check(TOKENS).local());

    client.settle(reservation, 0);

    assertTrue(client.check(TOKENS).allowed());
  }

  @Test
  void invalidTerms_ofAReservation_areAnError() {
    for (Duration ttl : List.of(Duration.ZERO, Duration.ofSeconds(-1), Duration.ofSeconds(Long.MAX_VALUE))) {
      HoldTerms terms = HoldTerms.releasedAfter(ttl);
      assertThrows(InvalidRequestException.class, () -> client.reserve(TOKENS, terms), ttl::toString);
    }
    assertThrows(InvalidRequestException.class, () -> client.reserve(Request.of("models"), MINUTE));
    assertThrows(InvalidRequestException.class, () -> client.settle(client.reserve(TOKENS, MINUTE), -1));
  }

  @Test
  void reservation_withoutServer_getsTheDefault() throws Exception {
    Reservation held = client.reserve(TOKENS, MINUTE);
    server.close();

    Reservation allowed = client.reserve(TOKENS, MINUTE);

    assertTrue(allowed.decision().allowed());
    assertNotNull(allowed.decision().noAnswer());
    assertFalse(allowed.id().isEmpty(), "the server may hold it");
    assertThrows(NoAnswerException.class, () -> client.settle(held, 1));
    assertThrows(NoAnswerException.class, () -> client.cancel(held));
    try (TollgateClient denying = client(OnNoAnswer.DENY)) {
      assertFalse(denying.reserve(TOKENS, MINUTE).decision().allowed());
    }
  }
}
