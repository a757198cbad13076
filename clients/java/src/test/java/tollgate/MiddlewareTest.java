package tollgate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static tollgate.testing.TollgateServer.eventually;
import static tollgate.testing.Vectors.requestOf;
import static tollgate.testing.Vectors.tree;

import com.google.rpc.RetryInfo;
import io.grpc.Context;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.InsecureServerCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.StatusRuntimeException;
import io.grpc.health.v1.HealthCheckRequest;
import io.grpc.health.v1.HealthGrpc;
import io.grpc.health.v1.HealthGrpc.HealthBlockingStub;
import io.grpc.protobuf.StatusProto;
import io.grpc.protobuf.services.HealthStatusManager;
import io.grpc.stub.MetadataUtils;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Consumer;
import java.util.function.Function;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.DynamicTest;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.TestFactory;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.EnableAutoConfiguration;
import org.springframework.boot.web.servlet.FilterRegistrationBean;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RestController;
import tollgate.grpc.RateLimitInterceptor;
import tollgate.servlet.RateLimitFilter;
import tollgate.testing.Counts;
import tollgate.testing.ScriptedServer;
import tollgate.testing.Vectors;
import tools.jackson.databind.JsonNode;

/** The servlet filter and the interceptor, by the vectors of middleware. */
class MiddlewareTest {

  private static final List<String> NAMES = List.of("ratelimit-limit", "ratelimit-remaining", "ratelimit-reset");

  // What decides the requests of the application, and what they are.
  private static final AtomicReference<Checker> CHECKER = new AtomicReference<>();
  private static final AtomicReference<Request> DESCRIBED = new AtomicReference<>();

  private static ConfigurableApplicationContext application;

  @Configuration
  @EnableAutoConfiguration
  @RestController
  static class Limited {

    @GetMapping("/")
    String hello() {
      return "hello";
    }

    @Bean
    FilterRegistrationBean<RateLimitFilter> filter() {
      RateLimitFilter filter =
          new RateLimitFilter(request -> CHECKER.get().check(request), request -> DESCRIBED.get());
      return new FilterRegistrationBean<>(filter);
    }
  }

  @BeforeAll
  static void startApplication() {
    application =
        new SpringApplication(Limited.class)
            .run(
                "--server.port=0",
                "--server.address=127.0.0.1",
                "--spring.main.banner-mode=off",
                "--logging.level.root=off");
  }

  @AfterAll
  static void stopApplication() {
    application.close();
  }

  /** A call by a caller, through middleware that the client decides for. */
  private interface Call {
    void make(JsonNode vector, TollgateClient client, Request described) throws Exception;
  }

  private static Stream<DynamicTest> tests(Call call) {
    return Vectors.tests(
        "middleware",
        vector -> {
          JsonNode request = vector.get("request");
          try (ScriptedServer server = new ScriptedServer();
              TollgateClient client = new TollgateClient(server.address(), Vectors.clientOptions(vector))) {
            if (vector.has("answer")) {
              CompletableFuture.runAsync(() -> answer(server, vector.get("answer")));
            }
            long begin = System.nanoTime();
            call.make(vector, client, request.isNull() ? null : requestOf(request));
            assertTrue(System.nanoTime() - begin >= vector.path("waits_ms").asLong(0) * 1_000_000);
          }
        });
  }

  private static void answer(ScriptedServer server, JsonNode answer) {
    try {
      server.next().reply(tree(Map.of("answers", List.of(answer))));
    } catch (InterruptedException error) {
      throw new AssertionError(error);
    }
  }

  private static void assertLimit(JsonNode vector, Function<String, String> header) {
    for (String name : NAMES) {
      assertEquals(vector.get("limit").path(name).asString(null), header.apply(name), name);
    }
  }

  @TestFactory
  Stream<DynamicTest> httpRequests_ofVectors_areLimited() {
    return tests(
        (vector, client, described) -> {
          CHECKER.set(client);
          DESCRIBED.set(described);
          URI uri = URI.create("http://127.0.0.1:" + application.getEnvironment().getProperty("local.server.port"));

          HttpRequest.Builder request = HttpRequest.newBuilder(uri);
          if (vector.has("accept")) {
            request.header("Accept", vector.get("accept").asString());
          }
          HttpResponse<String> response =
              HttpClient.newHttpClient().send(request.build(), BodyHandlers.ofString());

          JsonNode http = vector.path("http");
          assertEquals(vector.get("passes").asBoolean(), response.body().equals("hello"));
          assertLimit(vector, name -> response.headers().firstValue(name).orElse(null));
          assertEquals(http.path("status").asInt(200), response.statusCode());
          String retryAfter = response.headers().firstValue("retry-after").orElse(null);
          assertEquals(http.path("retry_after").asString(null), retryAfter);
          if (http.has("body")) {
            assertEquals(http.get("body").asString(), response.body());
            String type = response.headers().firstValue("content-type").orElse("").split(";")[0];
            assertEquals(http.path("type").asString("text/plain"), type);
          }
        });
  }

  @TestFactory
  Stream<DynamicTest> unaryCalls_ofVectors_areLimited() {
    return tests(
        (vector, client, described) ->
            callGrpc(vector, client, described, stub -> stub.check(HealthCheckRequest.getDefaultInstance())));
  }

  @TestFactory
  Stream<DynamicTest> streams_ofVectors_areLimited() {
    return tests((vector, client, described) -> callGrpc(vector, client, described, MiddlewareTest::watch));
  }

  private static void watch(HealthBlockingStub stub) {
    Context.CancellableContext watching = Context.current().withCancellation();
    watching.run(() -> stub.watch(HealthCheckRequest.getDefaultInstance()).next());
    watching.cancel(null);
  }

  /** A server with the health service, and a channel to it. */
  private static final class LimitedServer implements AutoCloseable {
    private final Server server;
    private final ManagedChannel channel;

    LimitedServer(Checker checker, Request described) throws Exception {
      server =
          Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create())
              .addService(new HealthStatusManager().getHealthService())
              .intercept(new RateLimitInterceptor(checker, (call, headers) -> described))
              .build()
              .start();
      channel =
          Grpc.newChannelBuilder("127.0.0.1:" + server.getPort(), InsecureChannelCredentials.create()).build();
    }

    @Override
    public void close() {
      channel.shutdownNow();
      server.shutdownNow();
    }
  }

  private static void callGrpc(
      JsonNode vector, TollgateClient client, Request described, Consumer<HealthBlockingStub> call) throws Exception {
    AtomicReference<Metadata> headers = new AtomicReference<>();
    AtomicReference<Metadata> trailers = new AtomicReference<>();
    StatusRuntimeException denial = null;
    try (LimitedServer limited = new LimitedServer(client, described)) {
      try {
        call.accept(
            HealthGrpc.newBlockingStub(limited.channel)
                .withInterceptors(MetadataUtils.newCaptureMetadataInterceptor(headers, trailers)));
      } catch (StatusRuntimeException error) {
        denial = error;
      }
    }
    assertEquals(vector.get("passes").asBoolean(), denial == null);
    assertLimit(
        vector,
        name ->
            Stream.of(headers, trailers)
                .filter(metadata -> metadata.get() != null)
                .map(metadata -> metadata.get().get(Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER)))
                .filter(value -> value != null)
                .findFirst()
                .orElse(null));
    if (denial != null) {
      JsonNode grpc = vector.get("grpc");
      assertEquals(grpc.get("code").asString(), denial.getStatus().getCode().name());
      assertEquals(grpc.get("message").asString(), denial.getStatus().getDescription());
      com.google.rpc.Status details = StatusProto.fromThrowable(denial);
      assertEquals(grpc.get("retry_delay_ms").isNumber() ? 1 : 0, details.getDetailsCount());
      if (details.getDetailsCount() > 0) {
        com.google.protobuf.Duration delay = details.getDetails(0).unpack(RetryInfo.class).getRetryDelay();
        assertEquals(grpc.get("retry_delay_ms").asLong(), delay.getSeconds() * 1000 + delay.getNanos() / 1_000_000);
      }
    }
  }

  @Test
  void canceledCall_whileItIsChecked_endsItsCheck() throws Exception {
    Counts counts = new Counts();
    try (ScriptedServer tollgate = new ScriptedServer();
        TollgateClient client =
            new TollgateClient(tollgate.address(), Vectors.clientOptions(tree(Map.of())).metrics(counts));
        LimitedServer limited = new LimitedServer(client, requestOf(tree("ann")))) {
      Context.CancellableContext caller = Context.current().withCancellation();
      HealthBlockingStub stub = HealthGrpc.newBlockingStub(limited.channel);
      Runnable call = () -> stub.check(HealthCheckRequest.getDefaultInstance());
      CompletableFuture.runAsync(caller.wrap(call));
      tollgate.next();

      caller.cancel(null);

      eventually("the check ends", () -> counts.outcomes().equals(Map.of("failed", 1)));
    }
  }
}
