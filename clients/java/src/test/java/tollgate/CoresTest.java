package tollgate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static tollgate.testing.Vectors.assertHas;
import static tollgate.testing.Vectors.described;
import static tollgate.testing.Vectors.elements;
import static tollgate.testing.Vectors.requestOf;
import static tollgate.testing.Vectors.tree;

import io.grpc.Status;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.Queue;
import java.util.stream.Stream;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.TestFactory;
import tollgate.Codec.CounterKey;
import tollgate.SliceTable.Actions;
import tollgate.SliceTable.End;
import tollgate.testing.Vectors;
import tools.jackson.databind.JsonNode;

/** The vectors of the deny cache and of the state machine of slices. */
class CoresTest {

  private static final long MILLISECOND = 1_000_000;

  @TestFactory
  Stream<DynamicTest> denyCache_ofVectors_deniesWhatTheyDeny() {
    return Vectors.tests(
        "deny_cache",
        vector -> {
          ClientOptions options = Vectors.clientOptions(vector);
          DenyCache cache = new DenyCache(options.denyCacheKeys, options.denyCacheMax);
          vector.get("steps").forEach(step -> step(cache, step));
          assertTrue(cache.isIdle());
        });
  }

  private static void step(DenyCache cache, JsonNode step) {
    if (step.has("clear")) {
      cache.clear(step.get("at").asLong() * MILLISECOND);
      return;
    }
    String event = Stream.of("check", "refuse", "refund", "begin", "end").filter(step::has).findAny().orElseThrow();
    tollgate.v1.Request request = Codec.messageOf(requestOf(step.get(event)));
    CounterKey key = Codec.countersOf(request);
    long[] hits = Codec.hitsOf(request);
    long now = step.get("at").asLong() * MILLISECOND;
    switch (event) {
      case "begin" -> cache.begin(key);
      case "end" -> cache.end(key);
      case "refund" -> cache.refund(key, now);
      case "refuse" -> {
        long retryAfter = step.path("retry_after_ms").asLong(0);
        Map<String, Object> limit = Map.of("reset_after_ms", step.path("reset_after_ms").asLong(retryAfter));
        Map<String, Object> denial =
            Map.of("verdict", "denied", "retry_after_ms", retryAfter, "limits", List.of(limit));
        cache.begin(key);
        Decision decision = Codec.decisionOf(Vectors.answerOf(tree(denial)));
        cache.refuse(key, hits, decision, step.get("sent").asLong() * MILLISECOND);
        cache.end(key);
      }
      default -> {
        Optional<Decision> denial = cache.denied(key, hits, now);
        JsonNode denied = step.get("denied");
        assertEquals(denied.isObject() || denied.asBoolean(), denial.isPresent(), step::toString);
        assertHas(denied, denial.map(Vectors::described).orElse(denied));
        denial.ifPresent(each -> assertEquals(Source.DENY_CACHE, each.source()));
      }
    }
  }

  @TestFactory
  Stream<DynamicTest> slices_ofVectors_haveTheirDecisionsAndCalls() {
    return Vectors.tests(
        "slices",
        vector -> {
          Slices slices = new Slices(Vectors.with(new SliceOptions(), vector.path("options")));
          vector.get("steps").forEach(slices::step);
        });
  }

  /** The state machine of slices, and its ends under way. */
  private static final class Slices {
    private final SliceTable table;
    private final Map<CounterKey, Queue<End>> ends = new HashMap<>();
    private long last;

    Slices(SliceOptions options) {
      table = new SliceTable(options);
    }

    void step(JsonNode step) {
      long now = step.get("at").asLong() * MILLISECOND;
      Request request = requestOf(step.has("check") ? step.get("check") : tree(step.path("key").asString("red")));
      CounterKey key = Codec.countersOf(Codec.messageOf(request));
      Actions actions = new Actions();
      if (step.has("check")) {
        Optional<Decision> decision =
            table.serves(request) ? table.check(key, request, now, actions) : Optional.empty();
        assertEquals(step.get("remaining").isNumber(), decision.isPresent(), step::toString);
        decision.ifPresent(each -> compare(step, each));
      } else if (step.has("reserved")) {
        table.reserved(key, reservationOf(step, request), now, actions);
      } else if (step.has("ended")) {
        table.ended(key, ends.get(key).remove(), errorOf(step.get("ended").asString()), now, actions);
      } else if (step.has("due")) {
        assertEquals(OptionalLong.of(now - last), table.nextDue(key, last), step::toString);
        table.advance(key, now, actions);
      } else {
        actions = table.close(now).getOrDefault(key, actions);
      }
      last = now;
      ends.computeIfAbsent(key, unused -> new ArrayDeque<>()).addAll(actions.ends);
      List<String> expected = elements(step.path("calls")).map(JsonNode::asString).toList();
      assertEquals(expected, callsOf(actions), step::toString);
    }

    private static void compare(JsonNode step, Decision decision) {
      assertEquals(Source.PREPAID, decision.source());
      JsonNode described = described(decision);
      assertEquals(step.get("remaining"), described.get("remaining"), step::toString);
      assertEquals(step.path("reset_after_ms").asInt(described.get("reset_after_ms").asInt()),
          described.get("reset_after_ms").asInt());
    }

    private static List<String> callsOf(Actions actions) {
      List<String> calls = new ArrayList<>();
      actions.ends.forEach(end -> calls.add(end.spent == null ? "cancel" : "settle " + end.spent));
      if (actions.reserve != null) {
        calls.add("reserve");
      }
      if (actions.lost > 0) {
        calls.add("lost " + actions.lost);
      }
      return calls;
    }

    /** What the client makes of an answer to a reservation. */
    private static Reservation reservationOf(JsonNode step, Request request) {
      JsonNode answer = step.get("reserved");
      return switch (answer.asStringOpt().orElse("")) {
        case "invalid" -> null;
        case "no_answer" ->
            new Reservation(
                request,
                Decision.withoutAnswer(OnNoAnswer.ALLOW, (NoAnswerException) errorOf("no_answer")),
                "chosen",
                false);
        default -> {
          Decision decision = Codec.decisionOf(Vectors.answerOf(answer));
          boolean held = decision.allowed() && step.path("held").asBoolean(true);
          yield new Reservation(request, decision, held ? "held" : "", false);
        }
      };
    }

    private static RuntimeException errorOf(String name) {
      return switch (name) {
        case "no_answer" -> new NoAnswerException(Status.Code.UNAVAILABLE, "going down");
        case "invalid" -> new InvalidRequestException("other descriptors");
        default -> null;
      };
    }
  }
}
