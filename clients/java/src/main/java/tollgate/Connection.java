package tollgate;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientInterceptors;
import io.grpc.Context;
import io.grpc.Deadline;
import io.grpc.Grpc;
import io.grpc.LoadBalancerRegistry;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import tollgate.Elsewhere.Attempt;
import tollgate.v1.RateLimiterGrpc;

/** The gRPC channel to all addresses of a server's name. */
final class Connection implements AutoCloseable {

  // Answers are larger than their requests.
  private static final int ANSWER_BYTES_MAX = 32 << 20;
  private static final Executor IN_A_SECOND = CompletableFuture.delayedExecutor(1, TimeUnit.SECONDS);

  static {
    LoadBalancerRegistry.getDefaultRegistry().register(new Elsewhere());
  }

  private static final Set<MethodDescriptor<?, ?>> WITH_TOKEN =
      Set.of(
          RateLimiterGrpc.getSetLimitsMethod(),
          RateLimiterGrpc.getGetLimitsMethod(),
          RateLimiterGrpc.getClearLimitsMethod(),
          RateLimiterGrpc.getListLimitsMethod());

  private final ManagedChannel channel;
  // The same with the admin token, if there is one.
  private final Channel authorized;

  /** Does not wait for a connection, so a service can start while the server is down. */
  Connection(String target, ClientOptions options) {
    ManagedChannelBuilder<?> builder =
        Grpc.newChannelBuilder(target, options.credentials)
            .defaultLoadBalancingPolicy(Elsewhere.POLICY)
            // Detects a server that disappeared without closing the connection.
            .keepAliveTime(10, TimeUnit.SECONDS)
            .keepAliveTimeout(2, TimeUnit.SECONDS)
            // So that the first call after a pause does not wait for a dead connection.
            .keepAliveWithoutCalls(true)
            .maxInboundMessageSize(ANSWER_BYTES_MAX);
    options.channel.accept(builder);
    channel = builder.build();
    Metadata headers = new Metadata();
    if (!options.adminToken.isEmpty()) {
      headers.put(
          Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER), "Bearer " + options.adminToken);
    }
    authorized = ClientInterceptors.intercept(channel, MetadataUtils.newAttachHeadersInterceptor(headers));
    IN_A_SECOND.execute(this::reconnect);
  }

  // By default gRPC waits up to two minutes before it reconnects, and has no setting for it in Java. Connections that
  // work are not affected; names are resolved again as often as the JVM caches them.
  private void reconnect() {
    if (!channel.isShutdown()) {
      channel.resetConnectBackoff();
      IN_A_SECOND.execute(this::reconnect);
    }
  }

  /**
   * Sends a call, which ends with the context of the caller. A call that has charged nothing is repeated once, if
   * another address is connected.
   */
  <Q, A> CompletableFuture<A> call(MethodDescriptor<Q, A> method, Q request, Deadline deadline) {
    Context caller = Context.current();
    Attempt first = new Attempt(null);
    return send(method, request, deadline, first)
        .exceptionallyCompose(
            error -> {
              if (first.used == null || !Elsewhere.chargedNothing(error)) {
                return CompletableFuture.failedFuture(error);
              }
              Attempt second = new Attempt(first.used);
              Context before = caller.attach();
              try {
                return send(method, request, deadline, second)
                    .exceptionallyCompose(
                        again -> CompletableFuture.failedFuture(second.used == null ? error : again));
              } finally {
                caller.detach(before);
              }
            });
  }

  private <Q, A> CompletableFuture<A> send(
      MethodDescriptor<Q, A> method, Q request, Deadline deadline, Attempt attempt) {
    Reply<A> reply = new Reply<>();
    CallOptions options = CallOptions.DEFAULT.withDeadline(deadline).withOption(Elsewhere.ATTEMPT, attempt);
    try {
      Channel called = WITH_TOKEN.contains(method) ? authorized : channel;
      ClientCalls.asyncUnaryCall(called.newCall(method, options), request, reply);
    } catch (RuntimeException error) {
      // Thrown by code of the user. In another thread, so that a long queue does not become a deep stack.
      CompletableFuture.runAsync(() -> reply.onError(error));
    }
    return reply.future;
  }

  boolean isClosed() {
    return channel.isShutdown();
  }

  @Override
  public void close() {
    channel.shutdownNow();
  }

  private static final class Reply<A> implements StreamObserver<A> {
    private final CompletableFuture<A> future = new CompletableFuture<>();
    private A message;

    @Override
    public void onNext(A message) {
      this.message = message;
    }

    @Override
    public void onError(Throwable error) {
      future.completeExceptionally(error);
    }

    @Override
    public void onCompleted() {
      if (message == null) {
        onError(Status.INTERNAL.withDescription("the server answered without a message").asRuntimeException());
      } else {
        future.complete(message);
      }
    }
  }
}
