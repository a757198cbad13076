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
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.springframework.boot.SpringApplication;
import org.springframework.context.ConfigurableApplicationContext;
import tollgate.Descriptor;
import tollgate.LimitStatus;
import tollgate.Request;
import tollgate.TollgateClient;
import tollgate.testing.ScriptedServer;
import tollgate.testing.TollgateServer;
import tollgate.testing.Vectors;

class ApplicationTest {

  private TollgateServer server;
  private ConfigurableApplicationContext application;

  @BeforeEach
  void start() throws Exception {
    server = new TollgateServer(Files.readString(Path.of("..", "llm.yaml")));
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
        "--model.pace=200ms",
        "--tollgate.target=" + target,
        "--tollgate.timeout=" + PATIENCE);
  }

  @AfterEach
  void stop() {
    application.close();
    server.close();
  }

  private HttpRequest chat(int maxTokens) {
    String port = application.getEnvironment().getProperty("local.server.port");
    URI uri = URI.create("http://127.0.0.1:" + port + "/chat?max_tokens=" + maxTokens);
    return HttpRequest.newBuilder(uri).header("user", "ann").timeout(Duration.ofMinutes(1)).build();
  }

  private HttpResponse<String> get(int maxTokens) throws Exception {
    return HttpClient.newHttpClient().send(chat(maxTokens), BodyHandlers.ofString());
  }

  /** The tokens of the month, and the calls in flight. */
  private List<Long> used() {
    Request both = Request.of("models", Descriptor.of("tokens_of_month", "ann"), Descriptor.of("in_flight", "ann"));
    try {
      List<LimitStatus> limits = application.getBean(TollgateClient.class).peek(both).limits();
      return List.of(1_000_000 - limits.get(0).remaining(), 4 - limits.get(1).remaining());
    } catch (InterruptedException error) {
      throw new AssertionError(error);
    }
  }

  @Test
  void answer_shorterThanReserved_isChargedAsSent() throws Exception {
    assertEquals("Limits are kept exactly.\n".repeat(3), get(500).body());

    eventually("18 tokens are charged", () -> used().equals(List.of(18L, 0L)));
    assertEquals(400, get(0).statusCode());
  }

  @Test
  void answer_whoseCallerGoesAway_isChargedAsSent() throws Exception {
    HttpResponse<InputStream> response = HttpClient.newHttpClient().send(chat(6000), BodyHandlers.ofInputStream());
    assertEquals('L', response.body().read());
    assertEquals(List.of(6000L, 1L), used());
    HttpResponse<String> refused = get(6000);
    assertEquals(429, refused.statusCode());
    long wait = refused.headers().firstValueAsLong("Retry-After").orElseThrow();
    assertTrue(wait >= 1 && wait <= 12, refused.headers()::toString);
    assertEquals("10000", refused.headers().firstValue("RateLimit-Limit").orElseThrow());

    response.body().close();

    eventually("the place is free", () -> used().get(1) == 0);
    assertTrue(used().get(0) < 18, () -> used().toString());
  }

  @Test
  void reservation_whoseAnswerIsLost_isCanceled() throws Exception {
    application.close();
    try (ScriptedServer losing = new ScriptedServer()) {
      application = run(losing.address());
      // That of the warm-up.
      losing.next().reply(Vectors.tree(Map.of("answers", List.of("allowed"))));
      CompletableFuture<HttpResponse<String>> response =
          HttpClient.newHttpClient().sendAsync(chat(600), BodyHandlers.ofString());
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
}
