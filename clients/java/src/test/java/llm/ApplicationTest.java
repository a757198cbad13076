package llm;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static tollgate.testing.TollgateServer.PATIENCE;
import static tollgate.testing.TollgateServer.eventually;

import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.boot.SpringApplication;
import org.springframework.context.ConfigurableApplicationContext;
import tollgate.Descriptor;
import tollgate.Request;
import tollgate.TollgateClient;
import tollgate.testing.ScriptedServer;
import tollgate.testing.TollgateServer;
import tollgate.testing.Vectors;

class ApplicationTest {

  // By the hour, so that nothing comes back during the test.
  private static final String RULES =
      """
      domain: models
      descriptors:
        - key: requests
          rate_limit: {unit: hour, requests_per_unit: 2, algorithm: sliding_log}
        - key: tokens
          rate_limit: {unit: hour, requests_per_unit: 10000000}
      """;
  private static final int TOKENS = 10_000_000;

  private TollgateServer server;
  private ConfigurableApplicationContext application;

  @BeforeEach
  void start() {
    server = new TollgateServer(RULES);
    application = run(server.address());
  }

  private static ConfigurableApplicationContext run(String target) {
    SpringApplication example = new SpringApplication(Application.class);
    // As `main` does.
    example.setDefaultProperties(Map.of("tollgate.on-no-answer", "deny"));
    return example.run(
        "--server.port=0",
        "--server.address=127.0.0.1",
        "--spring.main.banner-mode=off",
        "--logging.level.root=off",
        "--tollgate.target=" + target,
        "--tollgate.timeout=" + PATIENCE);
  }

  @AfterEach
  void stop() {
    application.close();
    server.close();
  }

  private HttpRequest chat(String query) {
    String port = application.getEnvironment().getProperty("local.server.port");
    URI uri = URI.create("http://127.0.0.1:" + port + "/chat?" + query);
    return HttpRequest.newBuilder(uri).header("user", "ann").build();
  }

  private HttpResponse<String> get(String query) throws Exception {
    return HttpClient.newHttpClient().send(chat(query), BodyHandlers.ofString());
  }

  private long remaining(String key) {
    try {
      Request request = Request.of("models", Descriptor.of(key, "ann"));
      return application.getBean(TollgateClient.class).peek(request).tightest().orElseThrow().remaining();
    } catch (InterruptedException error) {
      throw new AssertionError(error);
    }
  }

  private void eventuallyRemain(String key, long hits) {
    eventually(hits + " " + key + " are left", () -> remaining(key) == hits);
  }

  @Test
  void answer_shorterThanReserved_isChargedAsSent() throws Exception {
    HttpResponse<String> response = get("sentences=2&max_tokens=500");

    assertEquals(200, response.statusCode());
    assertEquals("Limits are kept exactly.\n".repeat(2), response.body());
    eventuallyRemain("tokens", TOKENS - 12);
    eventuallyRemain("requests", 1);
  }

  @Test
  void answer_atItsMostTokens_ends() throws Exception {
    assertEquals("Limits are kept", get("max_tokens=3").body());
    eventuallyRemain("tokens", TOKENS - 3);
  }

  @Test
  void answer_whoseCallerGoesAway_isChargedAsSent() throws Exception {
    HttpResponse<InputStream> response =
        HttpClient.newHttpClient().send(chat("sentences=1000000&max_tokens=6000000"), BodyHandlers.ofInputStream());
    assertEquals('L', response.body().read());

    response.body().close();

    eventually("the tokens that were not sent are given back", () -> remaining("tokens") > TOKENS - 6_000_000);
    eventuallyRemain("requests", 1);
  }

  @Test
  void reservation_whoseAnswerIsLost_isCanceled() throws Exception {
    application.close();
    try (ScriptedServer losing = new ScriptedServer()) {
      application = run(losing.address());
      // That of the warm-up.
      losing.next().reply(Vectors.tree(Map.of("answers", List.of("allowed"))));
      CompletableFuture<HttpResponse<String>> response =
          HttpClient.newHttpClient().sendAsync(chat("max_tokens=600"), BodyHandlers.ofString());
      ScriptedServer.Call reserve = losing.next();
      reserve.reply(Vectors.tree(Map.of("fails", List.of("UNAVAILABLE", "the answer is lost"))));

      ScriptedServer.Call cancel = losing.next();

      assertEquals("cancel", cancel.method());
      assertEquals(reserve.<String>get("reservation_id"), cancel.get("reservation_id"));
      cancel.reply(Vectors.tree(Map.of()));
      assertEquals(503, response.join().statusCode());
      assertEquals("1", response.join().headers().firstValue("Retry-After").orElseThrow());
    }
  }

  @Test
  void call_overALimit_isRefused() throws Exception {
    assertEquals(429, get("max_tokens=" + (TOKENS + 1)).statusCode());
    eventuallyRemain("requests", 2);
    assertEquals(200, get("max_tokens=1").statusCode());
    assertEquals(200, get("max_tokens=1").statusCode());

    HttpResponse<String> refused = get("max_tokens=1");

    assertEquals(429, refused.statusCode());
    assertTrue(refused.headers().firstValueAsLong("Retry-After").orElseThrow() > 3000);
    assertEquals("2", refused.headers().firstValue("RateLimit-Limit").orElseThrow());
    assertEquals(400, get("max_tokens=0").statusCode());
  }
}
