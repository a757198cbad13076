package tollgate.grpc;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static tollgate.testing.TollgateServer.PATIENCE;
import static tollgate.testing.TollgateServer.eventually;

import com.google.rpc.RetryInfo;
import io.grpc.Channel;
import io.grpc.ClientInterceptor;
import io.grpc.ClientInterceptors;
import io.grpc.Context;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.InsecureServerCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.health.v1.HealthCheckRequest;
import io.grpc.health.v1.HealthGrpc;
import io.grpc.health.v1.HealthGrpc.HealthBlockingStub;
import io.grpc.protobuf.StatusProto;
import io.grpc.protobuf.services.HealthStatusManager;
import io.grpc.stub.MetadataUtils;
import java.time.Duration;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Function;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import tollgate.Checker;
import tollgate.ClientOptions;
import tollgate.Descriptor;
import tollgate.OnNoAnswer;
import tollgate.Outcome;
import tollgate.PrepaidSlices;
import tollgate.Request;
import tollgate.SliceOptions;
import tollgate.TollgateClient;
import tollgate.testing.Counts;
import tollgate.testing.Gate;
import tollgate.testing.TollgateServer;

/** A gRPC server with the health service, limited by Tollgate. */
class RateLimitInterceptorTest {

  private static final String RULES =
      """
      domain: edge
      descriptors:
        - key: user
          descriptors:
            - key: method
              rate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}
        - key: user
          value: many
          descriptors:
            - key: method
              rate_limit: {unit: hour, requests_per_unit: 1000000}
      """;
  private static final Metadata.Key<String> USER = Metadata.Key.of("user", Metadata.ASCII_STRING_MARSHALLER);

  private static TollgateServer tollgate;

  @BeforeAll
  static void startTollgate() {
    tollgate = new TollgateServer(RULES);
  }

  @AfterAll
  static void stopTollgate() {
    tollgate.close();
  }

  /** A unary call, and a stream of which one message is taken. */
  enum Kind {
    UNARY {
      @Override
      void call(HealthBlockingStub stub) {
        stub.check(HealthCheckRequest.getDefaultInstance());
      }
    },
    STREAM {
      @Override
      void call(HealthBlockingStub stub) {
        Context.CancellableContext watching = Context.current().withCancellation();
        Runnable first =
            () -> {
              Iterator<?> messages = stub.watch(HealthCheckRequest.getDefaultInstance());
              messages.next();
            };
        try {
          watching.run(first);
        } finally {
          watching.cancel(null);
        }
      }
    };

    abstract void call(HealthBlockingStub stub);
  }

  /** The server, its client of Tollgate and a channel to it. */
  private static final class Limited implements AutoCloseable {
    private final TollgateClient client;
    private final Server server;
    private final ManagedChannel channel;
    private final AtomicInteger described = new AtomicInteger();

    Limited(String target, ClientOptions.Builder options) throws Exception {
      this(target, options, client -> client);
    }

    Limited(String target, ClientOptions.Builder options, Function<TollgateClient, Checker> checker) throws Exception {
      client = new TollgateClient(target, options.build());
      server =
          Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create())
              .addService(new HealthStatusManager().getHealthService())
              .intercept(new RateLimitInterceptor(checker.apply(client), this::describe))
              .build()
              .start();
      channel =
          Grpc.newChannelBuilder("127.0.0.1:" + server.getPort(), InsecureChannelCredentials.create()).build();
    }

    private Request describe(ServerCall<?, ?> call, Metadata headers) {
      described.incrementAndGet();
      String method = call.getMethodDescriptor().getFullMethodName();
      String user = headers.get(USER);
      String domain = "invalid".equals(user) ? "" : "edge";
      return user == null ? null : Request.of(domain, Descriptor.of("user", user).and("method", method));
    }

    /** Makes a call; the answer has its metadata. */
    Answer call(Kind kind, String user) {
      AtomicReference<Metadata> headers = new AtomicReference<>();
      ClientInterceptor captured = MetadataUtils.newCaptureMetadataInterceptor(headers, new AtomicReference<>());
      HealthBlockingStub stub = HealthGrpc.newBlockingStub(as(user)).withInterceptors(captured);
      try {
        kind.call(stub);
        return new Answer(Status.OK, null, headers.get());
      } catch (StatusRuntimeException error) {
        return new Answer(error.getStatus(), StatusProto.fromThrowable(error), headers.get());
      }
    }

    private Channel as(String user) {
      Metadata metadata = new Metadata();
      if (user != null) {
        metadata.put(USER, user);
      }
      return ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(metadata));
    }

    @Override
    public void close() throws Exception {
      channel.shutdownNow();
      server.shutdownNow();
      server.awaitTermination();
      client.close();
    }
  }

  private record Answer(Status status, com.google.rpc.Status details, Metadata headers) {

    String header(String name) {
      return headers == null ? null : headers.get(Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER));
    }
  }

  private static Limited limited() throws Exception {
    return new Limited(tollgate.address(), ClientOptions.builder().timeout(PATIENCE));
  }

  @ParameterizedTest
  @EnumSource
  void call_overItsLimit_isRefusedWithRetryInfo(Kind kind) throws Exception {
    try (Limited limited = limited()) {
      Answer passed = limited.call(kind, "ann");
      Answer refused = limited.call(kind, "ann");

      assertEquals(Status.Code.OK, passed.status().getCode());
      assertEquals(Status.Code.RESOURCE_EXHAUSTED, refused.status().getCode());
      for (Answer each : List.of(passed, refused)) {
        assertEquals("1", each.header("ratelimit-limit"));
        assertEquals("0", each.header("ratelimit-remaining"));
      }
      assertEquals("3600", passed.header("ratelimit-reset"));
      long wait = refused.details().getDetails(0).unpack(RetryInfo.class).getRetryDelay().getSeconds();
      assertTrue(wait > 3000 && wait <= 3600, refused::toString);
    }
  }

  @ParameterizedTest
  @EnumSource
  void call_withoutDescription_isNotLimited(Kind kind) throws Exception {
    try (Limited limited = limited()) {
      for (int i = 0; i < 3; i++) {
        Answer answer = limited.call(kind, null);
        assertEquals(Status.Code.OK, answer.status().getCode());
        assertNull(answer.header("ratelimit-limit"));
      }
    }
  }

  @ParameterizedTest
  @EnumSource
  void invalidDescription_ofACall_isAnErrorOfTheServer(Kind kind) throws Exception {
    try (Limited limited = limited()) {
      assertEquals(Status.Code.INTERNAL, limited.call(kind, "invalid").status().getCode());
    }
  }

  @Test
  void calls_withSlices_arePrepaid() throws Exception {
    Counts counts = new Counts();
    ClientOptions.Builder options = ClientOptions.builder().timeout(PATIENCE).metrics(counts);
    SliceOptions ofMany = new SliceOptions(100_000, Duration.ofMinutes(1), 10);
    try (Limited limited = new Limited(tollgate.address(), options, client -> new PrepaidSlices(client, ofMany))) {
      eventually(
          "a call is prepaid",
          () -> {
            Answer answer = limited.call(Kind.UNARY, "many");
            assertEquals(Status.Code.OK, answer.status().getCode());
            assertEquals("1000000", answer.header("ratelimit-limit"));
            return counts.of(Outcome.PREPAID) > 0;
          });
    }
  }

  @ParameterizedTest
  @EnumSource
  void call_withoutTollgate_getsTheDefault(Kind kind) throws Exception {
    // Nothing listens on port 1.
    try (Limited allowing = new Limited("127.0.0.1:1", ClientOptions.builder());
        Limited denying = new Limited("127.0.0.1:1", ClientOptions.builder().onNoAnswer(OnNoAnswer.DENY))) {
      assertEquals(Status.Code.OK, allowing.call(kind, "ann").status().getCode());
      Answer denied = denying.call(kind, "ann");
      assertEquals(Status.Code.RESOURCE_EXHAUSTED, denied.status().getCode());
      assertEquals(0, denied.details().getDetailsCount());
    }
  }

  @Test
  void canceledCall_whileItIsChecked_endsItsCheck() throws Exception {
    Counts counts = new Counts();
    Gate gate = new Gate();
    ClientOptions.Builder options = ClientOptions.builder().timeout(PATIENCE).metrics(counts).maxCalls(1);
    options.channel(channel -> channel.intercept(gate));
    try (Limited limited = new Limited(tollgate.address(), options)) {
      CompletableFuture<Answer> first = CompletableFuture.supplyAsync(() -> limited.call(Kind.UNARY, "first"));
      eventually("the first check is sent", () -> gate.waiting() == 1);
      Context.CancellableContext caller = Context.current().withCancellation();
      Runnable call = () -> limited.call(Kind.UNARY, "second");
      Thread second = new Thread(caller.wrap(call));
      second.start();
      eventually("the second call arrives", () -> limited.described.get() == 2);

      caller.cancel(null);

      eventually("its check ends", () -> counts.of(Outcome.FAILED) == 1);
      second.join();
      gate.open();
      assertEquals(Status.Code.OK, first.join().status().getCode());
      assertEquals(List.of(1), counts.sent());
    }
  }
}
