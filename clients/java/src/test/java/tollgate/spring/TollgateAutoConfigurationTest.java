package tollgate.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static tollgate.testing.TollgateServer.PATIENCE;
import static tollgate.testing.TollgateServer.eventually;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.springframework.beans.factory.NoSuchBeanDefinitionException;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RestController;
import shop.Application;
import tollgate.Descriptor;
import tollgate.Metrics;
import tollgate.Outcome;
import tollgate.PrepaidSlices;
import tollgate.Request;
import tollgate.SliceOptions;
import tollgate.TollgateClient;
import tollgate.servlet.RateLimitFilter;
import tollgate.testing.Counts;
import tollgate.testing.TollgateServer;

/** The filter and its auto-configuration, in applications of Spring Boot. */
class TollgateAutoConfigurationTest {

  private static final String RULES =
      """
      domain: edge
      descriptors:
        - key: user
          rate_limit: {unit: hour, requests_per_unit: 2, algorithm: sliding_log}
        - key: many
          rate_limit: {unit: hour, requests_per_unit: 1000000}
        - key: none
          rate_limit: {unit: hour, requests_per_unit: 0}
        - key: turn
          rate_limit: {unit: second, requests_per_unit: 10, algorithm: leaky_queue, burst: 5}
      """;
  private static final String PATIENT = "tollgate.timeout=" + PATIENCE;

  private static TollgateServer server;

  private final List<ConfigurableApplicationContext> applications = new ArrayList<>();

  @BeforeAll
  static void startServer() {
    server = new TollgateServer(RULES);
  }

  @AfterAll
  static void stopServer() {
    server.close();
  }

  @AfterEach
  void stopApplications() {
    applications.forEach(ConfigurableApplicationContext::close);
  }

  /** Limits the header "user" by the key in the path. */
  @Configuration
  @EnableAutoConfiguration
  @RestController
  static class Limited {

    @GetMapping("/{key}")
    String hello() {
      return "hello";
    }

    @Bean
    RateLimitFilter.Describe describe() {
      return request -> {
        String user = request.getHeader("user");
        String domain = "invalid".equals(user) ? "" : "edge";
        return user == null ? null : Request.of(domain, Descriptor.of(request.getRequestURI().substring(1), user));
      };
    }

    @Bean
    Metrics metrics() {
      return new Counts();
    }
  }

  /** The same, from prepaid slices. */
  @Configuration
  static class Prepaid extends Limited {

    @Bean
    PrepaidSlices slices(TollgateClient client) {
      return new PrepaidSlices(client, new SliceOptions(100_000, Duration.ofMinutes(1), 10));
    }
  }

  private ConfigurableApplicationContext start(Class<?> application, String... properties) {
    SpringApplication spring = new SpringApplication(application);
    List<String> arguments = new ArrayList<>(List.of("--server.port=0", "--server.address=127.0.0.1"));
    arguments.addAll(List.of("--spring.main.banner-mode=off", "--logging.level.root=off"));
    List.of(properties).forEach(property -> arguments.add("--" + property));
    ConfigurableApplicationContext started = spring.run(arguments.toArray(String[]::new));
    applications.add(started);
    return started;
  }

  private ConfigurableApplicationContext startLimited() {
    return start(Limited.class, "tollgate.target=" + server.address(), PATIENT);
  }

  private static HttpResponse<String> get(ConfigurableApplicationContext application, String path, String user)
      throws Exception {
    String port = application.getEnvironment().getProperty("local.server.port");
    HttpRequest.Builder request = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + path));
    if (user != null) {
      request.header("user", user);
    }
    return HttpClient.newHttpClient().send(request.build(), BodyHandlers.ofString());
  }

  private static HttpResponse<String> getUnchecked(
      ConfigurableApplicationContext application, String path, String user) {
    try {
      return get(application, path, user);
    } catch (Exception error) {
      throw new AssertionError(error);
    }
  }

  private static String header(HttpResponse<String> response, String name) {
    return response.headers().firstValue(name).orElse("");
  }

  @Test
  void request_overItsLimit_isRefusedWithHeaders() throws Exception {
    ConfigurableApplicationContext application = startLimited();
    for (String remaining : List.of("1", "0")) {
      HttpResponse<String> passed = get(application, "/user", "ann");
      assertEquals(200, passed.statusCode());
      assertEquals("hello", passed.body());
      assertEquals("2", header(passed, "RateLimit-Limit"));
      assertEquals(remaining, header(passed, "RateLimit-Remaining"));
      assertEquals("3600", header(passed, "RateLimit-Reset"));
      assertEquals("", header(passed, "Retry-After"));
    }

    HttpResponse<String> refused = get(application, "/user", "ann");

    assertEquals(429, refused.statusCode());
    assertEquals("Too Many Requests", refused.body().strip());
    assertEquals("0", header(refused, "RateLimit-Remaining"));
    int wait = Integer.parseInt(header(refused, "Retry-After"));
    assertTrue(wait > 3500 && wait <= 3600, refused.headers()::toString);
    assertEquals(header(refused, "Retry-After"), header(refused, "RateLimit-Reset"));
    assertEquals(200, get(application, "/user", "bob").statusCode());
    Counts counts = (Counts) application.getBean(Metrics.class);
    assertEquals(3, counts.of(Outcome.ALLOWED));
    assertEquals(1, counts.of(Outcome.DENIED));
  }

  @Test
  void request_withoutDescription_isNotLimited() throws Exception {
    ConfigurableApplicationContext application = startLimited();
    for (int i = 0; i < 3; i++) {
      HttpResponse<String> response = get(application, "/user", null);
      assertEquals(200, response.statusCode());
      assertEquals("", header(response, "RateLimit-Limit"));
    }
  }

  @Test
  void request_thatNeverPasses_hasNoRetryAfter() throws Exception {
    HttpResponse<String> response = get(startLimited(), "/none", "ann");

    assertEquals(429, response.statusCode());
    assertEquals(Optional.empty(), response.headers().firstValue("Retry-After"));
    assertEquals("0", header(response, "RateLimit-Limit"));
  }

  @Test
  void requests_withABeanOfSlices_arePrepaid() throws Exception {
    ConfigurableApplicationContext application = start(Prepaid.class, "tollgate.target=" + server.address(), PATIENT);
    Counts counts = (Counts) application.getBean(Metrics.class);

    eventually(
        "a request is prepaid",
        () -> {
          HttpResponse<String> response = getUnchecked(application, "/many", "ann");
          assertEquals(200, response.statusCode());
          assertEquals("1000000", header(response, "RateLimit-Limit"));
          return counts.of(Outcome.PREPAID) > 0;
        });
  }

  @Test
  void delayedRequest_ofAQueue_waitsForItsTurn() throws Exception {
    ConfigurableApplicationContext application = startLimited();
    long begin = System.nanoTime();
    for (int i = 0; i < 3; i++) {
      assertEquals(200, get(application, "/turn", "ann").statusCode());
    }

    // The first goes at once, and one each 100 ms after it.
    assertTrue(System.nanoTime() - begin >= 200_000_000);
  }

  @Test
  void invalidDescription_ofARequest_isAnErrorOfTheServer() throws Exception {
    HttpResponse<String> response = get(startLimited(), "/user", "invalid");

    assertEquals(500, response.statusCode());
    assertEquals("Internal Server Error", response.body().strip());
  }

  @Test
  void request_withoutTollgate_getsTheDefault() throws Exception {
    // Nothing listens on port 1.
    ConfigurableApplicationContext allowing = start(Limited.class, "tollgate.target=127.0.0.1:1");
    ConfigurableApplicationContext denying =
        start(Limited.class, "tollgate.target=127.0.0.1:1", "tollgate.on-no-answer=deny");

    assertEquals(200, get(allowing, "/user", "ann").statusCode());
    HttpResponse<String> denied = get(denying, "/user", "ann");
    assertEquals(429, denied.statusCode());
    assertEquals("", header(denied, "Retry-After"));
  }

  @Test
  void application_withoutTarget_hasNoClient() throws Exception {
    ConfigurableApplicationContext application = start(Limited.class);

    assertThrows(NoSuchBeanDefinitionException.class, () -> application.getBean(TollgateClient.class));
    assertEquals(200, get(application, "/user", "ann").statusCode());
  }

  @Test
  void application_withWrongOption_doesNotStart() {
    assertThrows(
        Exception.class, () -> start(Limited.class, "tollgate.target=127.0.0.1:1", "tollgate.max-calls=0"));
  }

  @Test
  void example_forEachUser_keepsTheLimit() throws Exception {
    ConfigurableApplicationContext application =
        start(Application.class, "tollgate.target=" + server.address(), PATIENT);
    for (int i = 0; i < 2; i++) {
      assertEquals(200, get(application, "/hello", "eve").statusCode());
      assertEquals(200, get(application, "/hello", null).statusCode());
    }

    assertEquals(429, get(application, "/hello", "eve").statusCode());
    assertEquals(200, get(application, "/hello", "dan").statusCode());
  }
}
