package tollgate;

import io.grpc.ChannelCredentials;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannelBuilder;
import java.time.Duration;
import java.util.Objects;
import java.util.function.Consumer;

/**
 * The options of a client, which has those that are set when it is made. Each method throws an {@link
 * IllegalArgumentException} if its value is out of the range.
 */
public final class ClientOptions {

  private static final Duration MILLISECOND = Duration.ofMillis(1);
  private static final int MILLION = 1_000_000;

  Duration timeout = Duration.ofMillis(100);
  OnNoAnswer onNoAnswer = OnNoAnswer.ALLOW;
  ChannelCredentials credentials = InsecureChannelCredentials.create();
  int callsMax = 2;
  int batchMax = 256;
  int queueMax = 10_000;
  int denyCacheKeys = 10_000;
  Duration denyCacheMax = Duration.ofSeconds(1);
  String adminToken = "";
  Metrics metrics = new Metrics() {};
  Consumer<ManagedChannelBuilder<?>> channel = builder -> {};

  /**
   * Bounds the time of a call, in addition to the deadline of the gRPC context of the caller: 1 ms to 60 s. By default
   * 100 ms.
   */
  public ClientOptions timeout(Duration timeout) {
    this.timeout = Range.of(MILLISECOND, Duration.ofSeconds(60)).check("timeout", timeout);
    return this;
  }

  /** Decides if the server does not answer in time or at all. By default {@link OnNoAnswer#ALLOW}. */
  public ClientOptions onNoAnswer(OnNoAnswer onNoAnswer) {
    this.onNoAnswer = Objects.requireNonNull(onNoAnswer, "onNoAnswer");
    return this;
  }

  /** Those of the connections, for example of {@link io.grpc.TlsChannelCredentials}. By default plaintext. */
  public ClientOptions credentials(ChannelCredentials credentials) {
    this.credentials = Objects.requireNonNull(credentials, "credentials");
    return this;
  }

  /** Calls under way from which on further checks are collected: 1 to 100. By default 2. */
  public ClientOptions callsMax(int callsMax) {
    this.callsMax = Range.of(1, 100).check("callsMax", callsMax);
    return this;
  }

  /** Checks in one call: 1 to 256, at most {@code api.max_requests} of the server. By default 256. */
  public ClientOptions batchMax(int batchMax) {
    this.batchMax = Range.of(1, 256).check("batchMax", batchMax);
    return this;
  }

  /**
   * Checks that may wait for a call, at most a million; {@link #onNoAnswer} decides further ones. By default 10,000.
   */
  public ClientOptions queueMax(int queueMax) {
    this.queueMax = Range.of(1, MILLION).check("queueMax", queueMax);
    return this;
  }

  /** Keys in the local deny cache, at most a million; 0 turns it off. By default 10,000. */
  public ClientOptions denyCacheKeys(int denyCacheKeys) {
    this.denyCacheKeys = Range.of(0, MILLION).check("denyCacheKeys", denyCacheKeys);
    return this;
  }

  /**
   * The time after which a refused key is asked for again, if its retry-after is longer: 1 ms to 24 h. By default 1 s.
   */
  public ClientOptions denyCacheMax(Duration denyCacheMax) {
    this.denyCacheMax = Range.of(MILLISECOND, Duration.ofDays(1)).check("denyCacheMax", denyCacheMax);
    return this;
  }

  /**
   * The admin token of the server, which is sent with {@link TollgateClient#setLimits}, {@link
   * TollgateClient#getLimits}, {@link TollgateClient#clearLimits} and {@link TollgateClient#listLimits} only. By
   * default none.
   */
  public ClientOptions adminToken(String adminToken) {
    // As a token has that was read from a file with its line break.
    if (!adminToken.matches("[!-~]*")) {
      throw new IllegalArgumentException("adminToken is not visible ASCII");
    }
    this.adminToken = adminToken;
    return this;
  }

  /** Receives what the client counts. By default nothing is counted. */
  public ClientOptions metrics(Metrics metrics) {
    this.metrics = Objects.requireNonNull(metrics, "metrics");
    return this;
  }

  /** Changes the builder of the gRPC channel, for example to add a {@link io.grpc.ClientInterceptor}. */
  public ClientOptions channel(Consumer<ManagedChannelBuilder<?>> channel) {
    this.channel = Objects.requireNonNull(channel, "channel");
    return this;
  }
}
