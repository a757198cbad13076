package tollgate.grpc;

import com.google.protobuf.Any;
import com.google.protobuf.Duration;
import com.google.rpc.Code;
import com.google.rpc.RetryInfo;
import io.grpc.ForwardingServerCall.SimpleForwardingServerCall;
import io.grpc.Metadata;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.util.concurrent.CancellationException;
import tollgate.Checker;
import tollgate.Decision;
import tollgate.InvalidRequestException;
import tollgate.Request;
import tollgate.Source;

/**
 * Limits calls of a gRPC server by the decisions of a Tollgate server, each when it begins.
 *
 * <p>A denied call ends with RESOURCE_EXHAUSTED and google.rpc.RetryInfo, if the same call passes later, and with
 * UNAVAILABLE and google.rpc.RetryInfo of a second if the server gave no answer. The metadata of each response to a call
 * with a limit has ratelimit-limit, ratelimit-remaining and ratelimit-reset of the tightest one, in whole seconds. If
 * the description is an invalid request, the code is INTERNAL.
 *
 * <p>It waits in a thread of the server's executor, so the server must not use a direct executor.
 */
public final class RateLimitInterceptor implements ServerInterceptor {

  private final Checker checker;
  private final Describe describe;

  /** Says what a call asks for. */
  @FunctionalInterface
  public interface Describe {
    /** Returns null if the call is not limited. */
    Request describe(ServerCall<?, ?> call, Metadata headers);
  }

  public RateLimitInterceptor(Checker checker, Describe describe) {
    this.checker = checker;
    this.describe = describe;
  }

  @Override
  public <Q, A> ServerCall.Listener<Q> interceptCall(
      ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
    Request limited = describe.describe(call, headers);
    if (limited == null) {
      return next.startCall(call, headers);
    }
    try {
      Decision decision = checker.check(limited);
      Metadata limits = metadataOf(decision);
      if (!decision.allowed()) {
        call.sendHeaders(limits);
        StatusRuntimeException denial = denialOf(decision);
        return close(call, denial.getStatus(), denial.getTrailers());
      }
      decision.awaitTurn();
      return next.startCall(new LimitedCall<>(call, limits), headers);
    } catch (InvalidRequestException error) {
      // To let it pass would open a way around the limit for text that is too long.
      Status status = Status.INTERNAL.withDescription("the rate limit of this call is not set up correctly");
      return close(call, status, new Metadata());
    } catch (CancellationException error) {
      return close(call, Status.CANCELLED, new Metadata());
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      return close(call, Status.UNAVAILABLE.withDescription("the server shuts down"), new Metadata());
    }
  }

  private static <Q> ServerCall.Listener<Q> close(ServerCall<Q, ?> call, Status status, Metadata trailers) {
    call.close(status, trailers);
    return new ServerCall.Listener<>() {};
  }

  private static Metadata metadataOf(Decision decision) {
    Metadata metadata = new Metadata();
    decision
        .limitHeaders()
        .forEach((name, value) -> metadata.put(Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER), value));
    return metadata;
  }

  private static StatusRuntimeException denialOf(Decision decision) {
    boolean noAnswer = decision.source() == Source.DEFAULT;
    com.google.rpc.Status.Builder status =
        com.google.rpc.Status.newBuilder()
            .setCode(noAnswer ? Code.UNAVAILABLE_VALUE : Code.RESOURCE_EXHAUSTED_VALUE)
            .setMessage(decision.refusalReason());
    java.time.Duration wait = noAnswer ? Decision.NO_ANSWER_WAIT : decision.retryAfter();
    if (!wait.isZero()) {
      Duration delay = Duration.newBuilder().setSeconds(wait.toSeconds()).setNanos(wait.getNano()).build();
      status.addDetails(Any.pack(RetryInfo.newBuilder().setRetryDelay(delay).build()));
    }
    return StatusProto.toStatusRuntimeException(status.build());
  }

  /** Adds the limits to the metadata of the response. */
  private static final class LimitedCall<Q, A> extends SimpleForwardingServerCall<Q, A> {
    private final Metadata limits;
    private boolean hasHeaders;

    private LimitedCall(ServerCall<Q, A> call, Metadata limits) {
      super(call);
      this.limits = limits;
    }

    @Override
    public void sendHeaders(Metadata headers) {
      hasHeaders = true;
      headers.merge(limits);
      super.sendHeaders(headers);
    }

    @Override
    public void close(Status status, Metadata trailers) {
      // A response without messages has trailers only.
      if (!hasHeaders) {
        trailers.merge(limits);
      }
      super.close(status, trailers);
    }
  }
}
