package tollgate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static tollgate.testing.TollgateServer.PATIENCE;
import static tollgate.testing.Vectors.assertHas;
import static tollgate.testing.Vectors.camelCase;
import static tollgate.testing.Vectors.elements;
import static tollgate.testing.Vectors.requestOf;
import static tollgate.testing.Vectors.tree;

import com.google.protobuf.Duration;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;
import tollgate.testing.TollgateServer;
import tollgate.testing.Vectors;
import tollgate.v1.OwnLimit;
import tollgate.v1.SetLimit;
import tollgate.v1.SetLimitsRequest;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.node.ObjectNode;

/** The vectors of limits of their own, which run a client against the real server. */
class OwnLimitsTest {

  private static final int HOUR_SECONDS = 3600;

  @TestFactory
  Stream<DynamicTest> ownLimits_ofVectors_haveTheirResults() {
    return Vectors.tests("own_limits", OwnLimitsTest::replay);
  }

  private static void replay(JsonNode vector) throws Exception {
    // Null is none.
    String token = vector.path("token").asString(vector.has("token") ? "" : "secret");
    ClientOptions options = new ClientOptions().timeout(PATIENCE);
    if (vector.has("invalid")) {
      Exception error = assertThrows(IllegalArgumentException.class, () -> options.adminToken(token));
      assertTrue(error.getMessage().startsWith(camelCase(vector.get("invalid").asString())), error::getMessage);
      return;
    }
    String rules = Files.readString(Path.of("..", "vectors", "own_limits.yaml"));
    try (TollgateServer server = new TollgateServer(rules);
        TollgateClient client = new TollgateClient(server.address(), options.adminToken(token))) {
      Run run = new Run(client, new HashMap<>());
      for (JsonNode step : vector.get("steps")) {
        run.step(step);
      }
    }
  }

  /** A client, and the versions of its limits by the names of variables. */
  private record Run(TollgateClient client, Map<String, Long> versions) {

    void step(JsonNode step) throws Exception {
      if (step.has("check")) {
        Decision decision = client.check(requestOf(step.get("check")));
        assertNull(decision.noAnswer());
        Map<String, Object> found = new HashMap<>(Map.of("allowed", decision.allowed()));
        decision.tightest().ifPresent(limit -> found.put("requests_per_unit", (int) limit.requestsPerUnit()));
        decision.tightest().ifPresent(limit -> found.put("remaining", (int) limit.remaining()));
        assertHas(step.get("result"), tree(found));
        return;
      }
      try {
        List<LimitResult> results = results(step);
        assertFalse(step.has("error"), step::toString);
        compare(step, results);
      } catch (InvalidRequestException error) {
        assertEquals(step.path("error"), tree(List.of("invalid_request")), error::getMessage);
      } catch (NoAnswerException error) {
        assertEquals(step.path("error"), tree(List.of("no_answer", error.code().name())), error::getMessage);
      }
    }

    private List<LimitResult> results(JsonNode step) throws InterruptedException {
      String domain = step.path("domain").asString("edge");
      if (step.has("set")) {
        List<SetLimit> limits = elements(step.get("set")).flatMap(this::limitsOf).toList();
        boolean dryRun = step.path("dry_run").asBoolean(false);
        return client.setLimits(SetLimitsRequest.newBuilder().addAllLimits(limits).setDryRun(dryRun).build());
      }
      if (step.has("get")) {
        return client.getLimits(domain, keysOf(step.get("get")));
      }
      if (step.has("clear")) {
        return client.clearLimits(domain, keysOf(step.get("clear")));
      }
      Entry[] prefix = keyOf(step.get("list")).entries().toArray(Entry[]::new);
      return client.listLimits(domain, prefix).map(limit -> new LimitResult(limit, "", null)).toList();
    }

    /** One limit, or one for each of its users. */
    private Stream<SetLimit> limitsOf(JsonNode limit) {
      OwnLimit.Builder own =
          OwnLimit.newBuilder()
              .setDomain("edge")
              .setUnlimited(limit.path("unlimited").asBoolean(false))
              .setNote(limit.path("note").asString(""))
              .setSetBy(limit.path("set_by").asString(""));
      if (limit.has("requests_per_unit")) {
        own.setRequestsPerUnit(limit.get("requests_per_unit").asLong());
      }
      if (limit.has("unit")) {
        own.setUnit(tollgate.v1.Limit.Unit.valueOf(limit.get("unit").asString().toUpperCase(Locale.ROOT)));
      }
      if (limit.has("expires_after_h")) {
        own.setExpiresAfter(
            Duration.newBuilder().setSeconds(limit.get("expires_after_h").asLong() * HOUR_SECONDS));
      }
      SetLimit.Builder set = SetLimit.newBuilder();
      JsonNode version = limit.path("replaces_version");
      if (version.isString()) {
        set.setReplacesVersion(versions.get(version.asString()));
      } else if (version.isNumber()) {
        set.setReplacesVersion(version.asLong());
      }
      Descriptor key = keyOf(limit.get("key"));
      Stream<Descriptor> keys =
          limit.has("users")
              ? IntStream.range(0, limit.get("users").asInt()).mapToObj(user -> key.and("user", "" + user))
              : Stream.of(key);
      return keys.map(each -> set.setLimit(own.setKey(messageOf(each))).build());
    }

    private void compare(JsonNode step, List<LimitResult> results) {
      if (step.has("users")) {
        List<Integer> users = results.stream().map(OwnLimitsTest::userOf).sorted().toList();
        assertEquals(IntStream.range(0, step.get("users").asInt()).boxed().toList(), users);
        return;
      }
      if (!step.has("results")) {
        results.forEach(result -> assertNull(result.error()));
        return;
      }
      assertEquals(step.get("results").size(), results.size());
      for (int i = 0; i < results.size(); i++) {
        ObjectNode expected = (ObjectNode) step.get("results").get(i).deepCopy();
        if (expected.path("version").isString()) {
          expected.put("version", version(expected.get("version").asString(), results.get(i).limit()));
        }
        assertHas(expected, described(results.get(i)));
      }
    }

    /** A variable is bound to the first version that is received. */
    private long version(String name, OwnLimit limit) {
      if (!versions.containsKey(name)) {
        versions.values().forEach(other -> assertTrue(limit.getVersion() > other));
        versions.put(name, limit.getVersion());
      }
      return versions.get(name);
    }
  }

  /** A text is the value of the entry {@code user}. */
  private static Descriptor keyOf(JsonNode key) {
    if (key.isString()) {
      return Descriptor.of("user", key.asString());
    }
    List<Entry> entries =
        elements(key).map(entry -> new Entry(entry.get(0).asString(), entry.get(1).asString())).toList();
    return new Descriptor(entries, null, null, null);
  }

  private static Descriptor[] keysOf(JsonNode keys) {
    return elements(keys).map(OwnLimitsTest::keyOf).toArray(Descriptor[]::new);
  }

  private static tollgate.v1.Descriptor messageOf(Descriptor key) {
    tollgate.v1.Descriptor.Builder message = tollgate.v1.Descriptor.newBuilder();
    key.entries().forEach(entry -> message.addEntriesBuilder().setKey(entry.key()).setValue(entry.value()));
    return message.build();
  }

  /** The value of the last entry. */
  private static int userOf(LimitResult result) {
    List<tollgate.v1.Entry> entries = result.limit().getKey().getEntriesList();
    return Integer.parseInt(entries.get(entries.size() - 1).getValue());
  }

  private static JsonNode described(LimitResult result) {
    Map<String, Object> fields = new HashMap<>();
    fields.put("rule", result.rule());
    LimitException error = result.error();
    fields.put("error", error == null ? null : List.of(error.code().name(), error.reason()));
    OwnLimit limit = result.limit();
    fields.put("version", null);
    if (limit != null) {
      fields.put(
          "key",
          limit.getKey().getEntriesList().stream().map(each -> List.of(each.getKey(), each.getValue())).toList());
      fields.put("requests_per_unit", limit.hasRequestsPerUnit() ? (int) limit.getRequestsPerUnit() : null);
      String unit = limit.getUnit().name().toLowerCase(Locale.ROOT);
      fields.put("unit", unit.equals("unknown") ? null : unit);
      fields.put("unlimited", limit.getUnlimited());
      fields.put("note", limit.getNote());
      fields.put("set_by", limit.getSetBy());
      fields.put("set_by_is_claimed", limit.getSetByIsClaimed());
      fields.put("version", limit.getVersion());
      Duration time = limit.getExpiresAfter();
      fields.put(
          "expires_after_h",
          limit.hasExpiresAfter() ? (int) Math.ceil((time.getSeconds() + time.getNanos() / 1e9) / HOUR_SECONDS) : null);
    }
    return tree(fields);
  }
}
