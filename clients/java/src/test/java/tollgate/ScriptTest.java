package tollgate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static tollgate.testing.TollgateServer.PATIENCE;
import static tollgate.testing.TollgateServer.eventually;
import static tollgate.testing.Vectors.assertHas;
import static tollgate.testing.Vectors.camelCase;
import static tollgate.testing.Vectors.described;
import static tollgate.testing.Vectors.elements;
import static tollgate.testing.Vectors.requestOf;
import static tollgate.testing.Vectors.tree;
import static tollgate.testing.Vectors.userOf;

import com.google.protobuf.Duration;
import io.grpc.NameResolverRegistry;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;
import tollgate.testing.Counts;
import tollgate.testing.Replicas;
import tollgate.testing.ScriptedServer;
import tollgate.testing.Vectors;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/** The vectors that run a client against a scripted server, and those of options. */
class ScriptTest {

  private static final JsonNode SHORT =
      tree(
          Map.of(
              "allowed", Map.of("allowed", true, "source", "server"),
              "denied", Map.of("allowed", false, "source", "server"),
              "settled", Map.of("settled", true)));

  @TestFactory
  Stream<DynamicTest> scripts_ofVectors_haveTheirResults() {
    return Stream.of("batches", "ids", "reservations", "retries", "defaults")
        .flatMap(file -> Vectors.tests(file, vector -> {
          if (vector.has("of")) {
            replayOptions(vector);
          } else {
            replay(vector);
          }
        }));
  }

  private static void replay(JsonNode vector) throws Exception {
    try (ScriptedServer server = new ScriptedServer()) {
      List<String> addresses = new ArrayList<>(List.of(server.address()));
      for (JsonNode address : elements(vector.path("addresses")).skip(1).toList()) {
        addresses.add(address.asString().equals("server") ? server.start() : address.asString());
      }
      Replicas name = new Replicas(addresses);
      NameResolverRegistry.getDefaultRegistry().register(name);
      try (Script script = new Script(server, Vectors.clientOptions(vector))) {
        script.connect();
        for (JsonNode step : vector.get("steps")) {
          script.step(step);
        }
        assertTrue(server.isIdle(), "there is a further call");
      } finally {
        NameResolverRegistry.getDefaultRegistry().deregister(name);
      }
    }
  }

  /** A client and its server, and what has happened. */
  private static final class Script implements AutoCloseable {
    private final ScriptedServer server;
    private final Counts counts = new Counts();
    private final TollgateClient client;
    private final Map<String, CompletableFuture<?>> calls = new HashMap<>();
    private final Map<String, Reservation> reservations = new HashMap<>();
    private final List<ScriptedServer.Call> served = new ArrayList<>();
    private final Map<String, String> ids = new HashMap<>();

    Script(ScriptedServer server, ClientOptions options) {
      this.server = server;
      client = new TollgateClient("replicas:///tollgate", options.metrics(counts));
    }

    @Override
    public void close() {
      client.close();
    }

    /** Waits until the client is connected to all servers, if there are several. */
    void connect() throws Exception {
      Set<Integer> seen = new HashSet<>();
      while (server.size() > 1 && seen.size() < server.size()) {
        CompletableFuture<?> peek = blocking(() -> client.peek(requestOf(tree("ann"))));
        ScriptedServer.Call call = server.next();
        seen.add(call.server());
        call.reply(tree(Map.of("answers", List.of("allowed"))));
        peek.join();
      }
    }

    void step(JsonNode step) throws Exception {
      String name = step.has("of") ? step.get("of").asString() : userOf(step.path("request"));
      if (step.has("call")) {
        calls.put(name, call(name, step));
      }
      for (JsonNode request : step.path("queue")) {
        int waiting = client.queued() + 1;
        calls.put(userOf(request), client.checkAsync(requestOf(request)));
        eventually("the check waits", () -> client.queued() == waiting);
      }
      if (step.has("waiting")) {
        eventually("checks wait", () -> client.queued() == step.get("waiting").asInt());
      }
      if (step.has("receive")) {
        receive(step);
      }
      if (step.has("reply")) {
        served.get(step.get("reply").asInt() - 1).reply(step);
      }
      if (step.has("cancel")) {
        calls.get(step.get("cancel").asString()).cancel(true);
      }
      if (step.has("close")) {
        client.close();
      }
      if (step.has("result")) {
        compare(name, step.get("result"));
      }
      step.path("results").forEachEntry(this::compare);
      if (step.has("metrics")) {
        assertEquals(step.get("metrics"), tree(Map.of("outcomes", counts.outcomes(), "sent", counts.sent())));
      }
    }

    private CompletableFuture<?> call(String name, JsonNode step) {
      Request request = step.has("request") ? requestOf(step.get("request")) : null;
      return switch (step.get("call").asString()) {
        case "check" -> client.checkAsync(request);
        case "peek" -> blocking(() -> client.peek(request));
        case "refund" -> blocking(() -> client.refund(request));
        case "reserve" -> {
          Terms terms = Vectors.with(new Terms(), step.path("terms"));
          yield client.reserveAsync(request, terms).whenComplete((held, error) -> reservations.put(name, held));
        }
        case "settle" -> {
          Map<Integer, Long> hits = new HashMap<>();
          step.path("hits").forEachEntry((index, used) -> hits.put(Integer.valueOf(index), used.asLong()));
          yield client.settleAsync(reservations.get(name), step.get("actual").asLong(), hits);
        }
        case "cancel" -> client.cancelAsync(reservations.get(name));
        default -> throw new AssertionError(step);
      };
    }

    private interface Blocking {
      Object run() throws InterruptedException;
    }

    private static CompletableFuture<?> blocking(Blocking call) {
      return CompletableFuture.supplyAsync(
          () -> {
            try {
              return call.run();
            } catch (InterruptedException error) {
              throw new AssertionError(error);
            }
          });
    }

    private void compare(String name, JsonNode expected) {
      JsonNode whole = expected.isString() ? SHORT.get(expected.asString()) : expected;
      assertHas(whole, calls.get(name).orTimeout(PATIENCE.toSeconds(), TimeUnit.SECONDS).handle(Script::result).join());
    }

    private static JsonNode result(Object value, Throwable error) {
      Throwable cause = error instanceof CompletionException ? error.getCause() : error;
      if (cause instanceof InvalidRequestException) {
        return tree(Map.of("error", List.of("invalid_request", cause.getMessage())));
      }
      if (cause instanceof NoAnswerException reason) {
        return tree(Map.of("error", List.of("no_answer", reason.code().name(), reason.getMessage())));
      }
      if (cause instanceof CancellationException) {
        return tree(Map.of("error", List.of("canceled")));
      }
      if (value instanceof Reservation reservation) {
        return ((ObjectNode) described(reservation.decision())).put("ended", reservation.ended());
      }
      return value instanceof Decision decision ? described(decision) : SHORT.get("settled");
    }

    private void receive(JsonNode step) throws InterruptedException {
      ScriptedServer.Call call = receiveOne(step);
      int elsewhere = step.path("elsewhere").asInt(0);
      if (step.has("first_fails")) {
        elsewhere = served.size();
        call.reply(tree(Map.of("fails", step.get("first_fails"))));
        call = receiveOne(step);
      }
      if (elsewhere > 0) {
        assertNotEquals(served.get(elsewhere - 1).server(), call.server());
      }
      if (step.has("answers") || step.has("fails") || List.of("settle", "cancel").contains(call.method())) {
        call.reply(step);
      }
    }

    private ScriptedServer.Call receiveOne(JsonNode step) throws InterruptedException {
      ScriptedServer.Call call = server.next();
      served.add(call);
      assertEquals(step.path("call").asString("check"), call.method());
      List<tollgate.v1.Request> requests =
          elements(step.get("receive")).map(each -> Codec.countedOf(requestOf(each))).toList();
      if (List.of("check", "peek", "refund").contains(call.method())) {
        assertEquals(requests, call.get("requests"));
      } else {
        receiveReservation(step, call, requests.get(0));
      }
      return call;
    }

    private void receiveReservation(JsonNode step, ScriptedServer.Call call, tollgate.v1.Request request) {
      assertEquals(request.getDomain(), call.get("domain"));
      assertEquals(request.getDescriptorsList(), call.get("descriptors"));
      assertEquals(idOf(step.get("reservation_id").asString(), call.get("reservation_id")), call.get("reservation_id"));
      if (step.has("actual")) {
        assertEquals(step.get("actual").asLong(), call.<Long>get("actual"));
      }
      if (call.method().equals("reserve")) {
        assertEquals(request.getHits(), call.<Long>get("amount"));
        Duration ttl = call.get("ttl");
        String onExpiry = call.get("on_expiry").toString().toLowerCase(Locale.ROOT);
        int milliseconds = (int) (ttl.getSeconds() * 1000 + ttl.getNanos() / 1_000_000);
        assertHas(step.path("receive_terms"), tree(Map.of("ttl_ms", milliseconds, "on_expiry", onExpiry)));
      }
    }

    /** A variable is bound to the first id that is received. */
    private String idOf(String expected, String received) {
      if (expected.startsWith("$") && !ids.containsKey(expected)) {
        assertTrue(received.matches("[0-9a-f]{32}"), received);
        assertFalse(ids.containsValue(received), "the id of another reservation");
        ids.put(expected, received);
      }
      return ids.getOrDefault(expected, expected);
    }
  }

  private static void replayOptions(JsonNode vector) throws Exception {
    Object options =
        Map.of("client", new ClientOptions(), "slices", new SliceOptions(), "terms", new Terms())
            .get(vector.get("of").asString());
    for (Map.Entry<String, JsonNode> each : vector.path("defaults").properties()) {
      Field field = options.getClass().getDeclaredField(camelCase(each.getKey()));
      field.setAccessible(true);
      Object value = field.get(options);
      String text = value instanceof java.time.Duration time ? "" + time.toMillis() : value.toString();
      assertEquals(each.getValue().asString(), text.toLowerCase(Locale.ROOT), each.getKey());
    }
    String option = vector.path("option").asString("");
    vector.path("valid").forEach(value -> Vectors.with(options, tree(Map.of(option, value))));
    for (JsonNode value : vector.path("invalid")) {
      RuntimeException error =
          assertThrows(RuntimeException.class, () -> Vectors.with(options, tree(Map.of(option, value))));
      assertTrue(error.getMessage().startsWith(camelCase(option)), error::getMessage);
    }
  }
}
