package tollgate;

import io.grpc.ChannelCredentials;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannelBuilder;
import java.time.Duration;
import java.util.Objects;
import java.util.function.Consumer;

/**
 * The options of a client; {@link #builder} has the defaults.
 *
 * @param timeout bounds the time of a call, in addition to the deadline of the gRPC context of the caller
 * @param onNoAnswer decides if the server does not answer in time or at all
 * @param credentials those of the connections, for example of {@link io.grpc.TlsChannelCredentials}
 * @param maxCalls calls under way from which on further checks are collected
 * @param maxBatch checks in one call, at most {@code api.max_requests} of the server
 * @param maxQueue checks that may wait for a call; {@code onNoAnswer} decides further ones
 * @param denyCacheSize keys in the local deny cache; 0 turns it off
 * @param denyCacheMax the time after which a refused key is asked for again, if its retry-after is longer
 * @param metrics receives what the client counts
 * @param channel changes the builder of the gRPC channel, for example to add a {@link io.grpc.ClientInterceptor}
 */
public record ClientOptions(
    Duration timeout,
    OnNoAnswer onNoAnswer,
    ChannelCredentials credentials,
    int maxCalls,
    int maxBatch,
    int maxQueue,
    int denyCacheSize,
    Duration denyCacheMax,
    Metrics metrics,
    Consumer<ManagedChannelBuilder<?>> channel) {

  public ClientOptions {
    Objects.requireNonNull(onNoAnswer, "onNoAnswer");
    Objects.requireNonNull(credentials, "credentials");
    Objects.requireNonNull(metrics, "metrics");
    Objects.requireNonNull(channel, "channel");
    require(timeout.toNanos() > 0, "timeout is not positive");
    require(!denyCacheMax.isNegative(), "denyCacheMax is negative");
    require(maxCalls >= 1 && maxBatch >= 1 && maxQueue >= 1, "maxCalls, maxBatch or maxQueue is below 1");
    require(denyCacheSize >= 0, "denyCacheSize is negative");
  }

  private static void require(boolean condition, String problem) {
    if (!condition) {
      throw new IllegalArgumentException(problem);
    }
  }

  /** Returns a builder with the defaults. */
  public static Builder builder() {
    return new Builder();
  }

  /** Sets options by their names. */
  public static final class Builder {
    private Duration timeout = Duration.ofMillis(100);
    private OnNoAnswer onNoAnswer = OnNoAnswer.ALLOW;
    private ChannelCredentials credentials = InsecureChannelCredentials.create();
    private int maxCalls = 2;
    private int maxBatch = 256;
    private int maxQueue = 10_000;
    private int denyCacheSize = 10_000;
    private Duration denyCacheMax = Duration.ofSeconds(1);
    private Metrics metrics = new Metrics() {};
    private Consumer<ManagedChannelBuilder<?>> channel = builder -> {};

    private Builder() {}

    /** By default 100 ms. */
    public Builder timeout(Duration timeout) {
      this.timeout = timeout;
      return this;
    }

    /** By default {@link OnNoAnswer#ALLOW}. */
    public Builder onNoAnswer(OnNoAnswer onNoAnswer) {
      this.onNoAnswer = onNoAnswer;
      return this;
    }

    /** By default plaintext. */
    public Builder credentials(ChannelCredentials credentials) {
      this.credentials = credentials;
      return this;
    }

    /** By default 2. */
    public Builder maxCalls(int maxCalls) {
      this.maxCalls = maxCalls;
      return this;
    }

    /** By default 256. */
    public Builder maxBatch(int maxBatch) {
      this.maxBatch = maxBatch;
      return this;
    }

    /** By default 10,000. */
    public Builder maxQueue(int maxQueue) {
      this.maxQueue = maxQueue;
      return this;
    }

    /** By default 10,000. */
    public Builder denyCacheSize(int denyCacheSize) {
      this.denyCacheSize = denyCacheSize;
      return this;
    }

    /** By default 1 s. */
    public Builder denyCacheMax(Duration denyCacheMax) {
      this.denyCacheMax = denyCacheMax;
      return this;
    }

    /** By default nothing is counted. */
    public Builder metrics(Metrics metrics) {
      this.metrics = metrics;
      return this;
    }

    /** By default the channel is as the client builds it. */
    public Builder channel(Consumer<ManagedChannelBuilder<?>> channel) {
      this.channel = channel;
      return this;
    }

    /**
     * Returns the options.
     *
     * @throws IllegalArgumentException if a number or a time is out of its range
     */
    public ClientOptions build() {
      return new ClientOptions(
          timeout,
          onNoAnswer,
          credentials,
          maxCalls,
          maxBatch,
          maxQueue,
          denyCacheSize,
          denyCacheMax,
          metrics,
          channel);
    }
  }
}
