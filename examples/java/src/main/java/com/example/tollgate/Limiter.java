package com.example.tollgate;

import envoy.extensions.common.ratelimit.v3.Ratelimit.RateLimitDescriptor;
import envoy.extensions.common.ratelimit.v3.Ratelimit.RateLimitDescriptor.Entry;
import envoy.service.ratelimit.v3.RateLimitServiceGrpc;
import envoy.service.ratelimit.v3.RateLimitServiceGrpc.RateLimitServiceBlockingStub;
import envoy.service.ratelimit.v3.Rls.RateLimitRequest;
import envoy.service.ratelimit.v3.Rls.RateLimitResponse;
import envoy.service.ratelimit.v3.Rls.RateLimitResponse.Code;
import envoy.service.ratelimit.v3.Rls.RateLimitResponse.DescriptorStatus;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.List;
import java.util.OptionalLong;
import java.util.concurrent.TimeUnit;

/**
 * Asks Tollgate whether a request may pass.
 *
 * <p>Create one for the whole process: its channel multiplexes the calls of all threads and reconnects by itself.
 */
public final class Limiter implements AutoCloseable {

  /** What happens to a request if Tollgate gives no answer. */
  public enum OnError {
    /** For protection against overload: an outage of the limiter must not be an outage of the service. */
    ALLOW,
    /** For limits that protect money, logins or secrets. */
    DENY
  }

  /**
   * What to do with a request.
   *
   * @param remaining what is left of the tightest limit; empty if no limit applies or there was no answer
   * @param retryAfter the time after which a refused request would pass
   * @param noAnswer the reason why Tollgate gave no answer, in which case {@link OnError} has decided; otherwise null
   */
  public record Decision(
      boolean allowed, OptionalLong remaining, Duration retryAfter, Status noAnswer) {}

  private static final Duration WARM_UP_TIMEOUT = Duration.ofSeconds(2);

  private final ManagedChannel channel;
  private final RateLimitServiceBlockingStub client;
  private final Duration timeout;
  private final OnError onError;

  /** Does not wait for the connection, so a service can start while Tollgate is down. */
  public Limiter(String to, Duration timeout, OnError onError) {
    channel =
        Grpc.newChannelBuilder(to, InsecureChannelCredentials.create())
            // Detects a peer that disappeared without closing the connection.
            .keepAliveTime(10, TimeUnit.SECONDS)
            .keepAliveTimeout(2, TimeUnit.SECONDS)
            .build();
    client = RateLimitServiceGrpc.newBlockingStub(channel);
    this.timeout = timeout;
    this.onError = onError;
  }

  /**
   * Opens the connection and loads the classes of a call, which takes a new JVM longer than a usual deadline. Call it
   * at start-up, before traffic comes; it returns within two seconds, also if Tollgate does not answer.
   */
  public void warmUp() {
    // A domain without rules has no limits, so this charges nothing.
    Entry entry = Entry.newBuilder().setKey("warm-up").build();
    try {
      client.withDeadlineAfter(WARM_UP_TIMEOUT).shouldRateLimit(request("warm-up", List.of(entry), 1));
    } catch (StatusRuntimeException noAnswer) {
      // A service can start while Tollgate is down; its requests get OnError.
    }
  }

  /** Charges the hits to the descriptor with these entries. */
  public Decision ask(String domain, List<Entry> entries, int hits) {
    try {
      // Without a deadline a silent peer would block the request. A deadline is an instant, so it is set for each call.
      return decisionOf(client.withDeadlineAfter(timeout).shouldRateLimit(request(domain, entries, hits)));
    } catch (StatusRuntimeException error) {
      boolean allowed = onError == OnError.ALLOW;
      return new Decision(allowed, OptionalLong.empty(), Duration.ZERO, error.getStatus());
    }
  }

  @Override
  public void close() {
    channel.shutdownNow();
  }

  private static RateLimitRequest request(String domain, List<Entry> entries, int hits) {
    return RateLimitRequest.newBuilder()
        .setDomain(domain)
        .addDescriptors(RateLimitDescriptor.newBuilder().addAllEntries(entries))
        .setHitsAddend(hits)
        .build();
  }

  private static Decision decisionOf(RateLimitResponse answer) {
    boolean denied = answer.getOverallCode() == Code.OVER_LIMIT;
    OptionalLong remaining =
        answer.getStatusesList().stream()
            .filter(DescriptorStatus::hasCurrentLimit)
            // The field has 32 bits without a sign, and Java's int is signed.
            .mapToLong(status -> Integer.toUnsignedLong(status.getLimitRemaining()))
            .min();
    // If several limits refuse, the longest wait applies.
    Duration retryAfter =
        answer.getStatusesList().stream()
            .filter(status -> denied && status.getCode() == Code.OVER_LIMIT)
            .map(status -> duration(status.getDurationUntilReset()))
            .reduce(Duration.ZERO, (one, other) -> one.compareTo(other) < 0 ? other : one);
    return new Decision(!denied, remaining, retryAfter, null);
  }

  private static Duration duration(com.google.protobuf.Duration wire) {
    return Duration.ofSeconds(wire.getSeconds(), wire.getNanos());
  }
}
