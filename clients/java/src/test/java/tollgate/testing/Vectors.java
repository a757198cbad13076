package tollgate.testing;

import com.google.protobuf.Any;
import com.google.protobuf.Duration;
import com.google.rpc.Code;
import com.google.rpc.ErrorInfo;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;
import org.junit.jupiter.api.Assertions;
import org.junit.jupiter.api.DynamicTest;
import tollgate.ClientOptions;
import tollgate.Decision;
import tollgate.Descriptor;
import tollgate.Entry;
import tollgate.Limit;
import tollgate.OnExpiry;
import tollgate.OnNoAnswer;
import tollgate.Request;
import tollgate.Unit;
import tollgate.v1.Answer;
import tollgate.v1.LimitStatus;
import tools.jackson.databind.JsonNode;
import tools.jackson.databind.json.JsonMapper;

/** The notation of clients/vectors, which clients/behaviour.md describes. */
public final class Vectors {

  private static final JsonMapper MAPPER = JsonMapper.shared();

  private Vectors() {}

  /** What a test does with a vector. */
  public interface Replay {
    void of(JsonNode vector) throws Exception;
  }

  /** A test for each vector of a file. */
  public static Stream<DynamicTest> tests(String file, Replay replay) {
    JsonNode vectors = MAPPER.readTree(Path.of("..", "vectors", file + ".json"));
    return elements(vectors)
        .map(vector -> DynamicTest.dynamicTest(vector.get("name").asString(), () -> replay.of(vector)));
  }

  public static Stream<JsonNode> elements(JsonNode list) {
    return StreamSupport.stream(list.spliterator(), false);
  }

  public static JsonNode tree(Object value) {
    return MAPPER.valueToTree(value);
  }

  /** Asserts the fields that are expected, and as many elements of a list. */
  public static void assertHas(JsonNode expected, JsonNode found) {
    expected.forEachEntry(
        (name, value) -> {
          JsonNode there = found.path(name);
          List<JsonNode> list = elements(there).limit(value.size()).toList();
          Assertions.assertEquals(value, value.isArray() ? tree(list) : there, () -> name + " of " + found);
        });
  }

  public static String userOf(JsonNode request) {
    return request.isString() ? request.asString() : request.path("user").asString("");
  }

  public static Request requestOf(JsonNode request) {
    List<Descriptor> descriptors = new ArrayList<>();
    if (!userOf(request).isEmpty()) {
      descriptors.add(Descriptor.of("user", userOf(request) + "x".repeat(request.path("pad").asInt(0))));
    }
    elements(request.path("descriptors")).map(Vectors::descriptorOf).forEach(descriptors::add);
    String id = request.path("request_id").asString(null);
    return new Request(request.path("domain").asString("edge"), descriptors, request.path("hits").asLong(1), id);
  }

  private static Descriptor descriptorOf(JsonNode descriptor) {
    List<Entry> entries =
        elements(descriptor.get("entries"))
            .map(entry -> new Entry(entry.get(0).asString(), entry.get(1).asString()))
            .toList();
    JsonNode limit = descriptor.path("limit");
    JsonNode hits = descriptor.path("hits");
    return new Descriptor(
        entries,
        limit.isArray() ? new Limit(limit.get(0).asLong(), Unit.valueOf(upper(limit.get(1)))) : null,
        hits.isNumber() ? hits.asLong() : null,
        descriptor.has("on_expiry") ? OnExpiry.valueOf(upper(descriptor.get("on_expiry"))) : null);
  }

  /** The options of a client. The timeout is long, unless it is given. */
  public static ClientOptions clientOptions(JsonNode vector) {
    ClientOptions options = new ClientOptions().timeout(TollgateServer.PATIENCE).adminToken("secret");
    return with(options, vector.path("options"));
  }

  /** Sets options by their names. */
  @SuppressWarnings("unchecked")
  public static <O> O with(O options, JsonNode values) {
    Object[] result = {options};
    values.forEachEntry((name, value) -> result[0] = with(result[0], name, value));
    return (O) result[0];
  }

  private static Object with(Object options, String name, JsonNode value) {
    String option = camelCase(name);
    String wither = "with" + option.substring(0, 1).toUpperCase(Locale.ROOT) + option.substring(1);
    Method method =
        Arrays.stream(options.getClass().getMethods())
            .filter(each -> each.getParameterCount() == 1)
            .filter(each -> each.getName().equals(option) || each.getName().equals(wither))
            .findAny()
            .orElseThrow();
    Map<Class<?>, Object> values =
        Map.of(
            int.class, value.asInt(0),
            long.class, value.asLong(0),
            java.time.Duration.class, java.time.Duration.ofMillis(value.asLong(0)),
            OnNoAnswer.class, OnNoAnswer.values()[value.asString().equals("deny") ? 1 : 0],
            OnExpiry.class, OnExpiry.values()[value.asString().equals("charge") ? 1 : 0]);
    try {
      return method.invoke(options, values.get(method.getParameterTypes()[0]));
    } catch (InvocationTargetException error) {
      throw (RuntimeException) error.getCause();
    } catch (IllegalAccessException error) {
      throw new AssertionError(error);
    }
  }

  /** The name of an option in Java. */
  public static String camelCase(String name) {
    String[] words = name.replaceAll("_ms$", "").split("_");
    StringBuilder result = new StringBuilder(words[0]);
    for (int i = 1; i < words.length; i++) {
      result.append(words[i].substring(0, 1).toUpperCase(Locale.ROOT)).append(words[i].substring(1));
    }
    return result.toString();
  }

  static com.google.rpc.Status errorOf(JsonNode error) {
    com.google.rpc.Status.Builder status =
        com.google.rpc.Status.newBuilder()
            .setCode(Code.valueOf(error.get(0).asString()).getNumber())
            .setMessage(error.get(1).asString());
    if (error.has(2)) {
      ErrorInfo info = ErrorInfo.newBuilder().setReason(error.get(2).asString()).setDomain("tollgate").build();
      status.addDetails(Any.pack(info));
    }
    return status.build();
  }

  public static Answer answerOf(JsonNode answer) {
    if (answer.isString()) {
      return answerOf(tree(Map.of("verdict", answer)));
    }
    if (answer.isArray()) {
      Map<String, Object> limit = Map.of("remaining", answer.get(0), "reset_after_ms", answer.get(1));
      return answerOf(tree(Map.of("verdict", "allowed", "limits", List.of(limit))));
    }
    Answer.Builder message = Answer.newBuilder();
    message.setVerdict(Answer.Verdict.valueOf(answer.path("verdict").asString("undecided").toUpperCase(Locale.ROOT)));
    message.setDelay(duration(answer, "delay_ms")).setRetryAfter(duration(answer, "retry_after_ms"));
    message.setNeverBecause(answer.path("never_because").asString(""));
    if (answer.has("error")) {
      message.setError(errorOf(answer.get("error")));
    }
    for (JsonNode limit : answer.path("limits")) {
      message.addLimits(
          LimitStatus.newBuilder()
              .setRequestsPerUnit(limit.path("requests_per_unit").asLong(0))
              .setUnit(tollgate.v1.Limit.Unit.MINUTE)
              .setRemaining(limit.path("remaining").asLong(0))
              .setRefused(limit.path("refused").asBoolean(false))
              .setResetAfter(duration(limit, "reset_after_ms"))
              .setRetryAfter(duration(limit, "retry_after_ms")));
    }
    return message.build();
  }

  private static Duration duration(JsonNode fields, String name) {
    long milliseconds = fields.path(name).asLong(0);
    return Duration.newBuilder()
        .setSeconds(milliseconds / 1000)
        .setNanos((int) (milliseconds % 1000) * 1_000_000)
        .build();
  }

  private static String upper(JsonNode text) {
    return text.asString().toUpperCase(Locale.ROOT);
  }

  /** A decision as vectors describe it. */
  public static JsonNode described(Decision decision) {
    Map<String, Object> fields = new java.util.HashMap<>();
    fields.put("allowed", decision.allowed());
    fields.put("source", decision.source().name().toLowerCase(Locale.ROOT));
    fields.put("retry_after_ms", decision.retryAfter().isZero() ? null : (int) decision.retryAfter().toMillis());
    if (!decision.limits().isEmpty()) {
      fields.put("remaining", (int) decision.limits().get(0).remaining());
      fields.put("reset_after_ms", (int) decision.limits().get(0).resetAfter().toMillis());
    }
    if (decision.noAnswer() != null) {
      fields.put("no_answer", List.of(decision.noAnswer().code().name(), decision.noAnswer().getMessage()));
    }
    return tree(fields);
  }
}
