package tollgate.spring;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static tollgate.testing.TollgateServer.PATIENCE;
import static tollgate.testing.TollgateServer.eventually;

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
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
        return user == null ? null : Request.of("edge", Descriptor.of(request.getRequestURI().substring(1), user));
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
      return new PrepaidSlices(client, new SliceOptions().withHits(100_000));
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
  void request_overItsLimit_isRefusedAndCounted() throws Exception {
    ConfigurableApplicationContext application = startLimited();
    for (int status : List.of(200, 200, 429)) {
      HttpResponse<String> response = get(application, "/user", "ann");
      assertEquals(status, response.statusCode());
      assertEquals("2", header(response, "RateLimit-Limit"));
    }

    Counts counts = (Counts) application.getBean(Metrics.class);
    assertEquals(Map.of("allowed", 2, "denied", 1), counts.outcomes());
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
          return counts.outcomes().containsKey("prepaid");
        });
  }

  @Test
  void application_withoutTarget_hasNoClient() throws Exception {
    ConfigurableApplicationContext application = start(Limited.class);

    assertThrows(NoSuchBeanDefinitionException.class, () -> application.getBean(TollgateClient.class));
    assertEquals(200, get(application, "/user", "ann").statusCode());
  }

  @Test
  void application_withWrongOption_doesNotStart() {
    for (String wrong : List.of("tollgate.calls-max=0", "tollgate.admin-token=no token")) {
      assertThrows(Exception.class, () -> start(Limited.class, "tollgate.target=127.0.0.1:1", wrong));
    }
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
    assertEquals(429, get(application, "/hello", null).statusCode());
    assertEquals(200, get(application, "/hello", "dan").statusCode());
  }
}
