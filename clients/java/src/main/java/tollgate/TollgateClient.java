package tollgate;

import io.grpc.Context;
import io.grpc.Deadline;
import io.grpc.Status;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.UUID;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;
import tollgate.Batcher.Reply;
import tollgate.Codec.CounterKey;
import tollgate.v1.Answer;
import tollgate.v1.PeekRequest;
import tollgate.v1.RateLimiterGrpc;
import tollgate.v1.RefundRequest;
import tollgate.v1.ReserveRequest;

/**
 * Asks one Tollgate, which may have many replicas, whether requests may pass.
 *
 * <p>Create one client for the process and share it between threads. It balances calls over all addresses of the
 * server's name, sends concurrent checks together, and answers for keys that are known to be refused. If the server
 * gives no answer in time, {@link OnNoAnswer} decides. The methods end with the gRPC {@link Context} of the caller.
 */
public final class TollgateClient implements AutoCloseable, Checker {

  private static final Duration WARM_UP_TIMEOUT = Duration.ofSeconds(2);

  private final ClientOptions options;
  private final Connection connection;
  private final Batcher batcher;
  private final DenyCache denials;

  /**
   * Does not wait for the connection, so a service can start while the server is down.
   *
   * @param target a gRPC name, such as {@code tollgate.example:8081} or {@code dns:///tollgate:8081}
   */
  public TollgateClient(String target, ClientOptions options) {
    this.options = options;
    connection = new Connection(target, options);
    batcher = new Batcher(connection, options);
    denials = new DenyCache(options.denyCacheSize(), options.denyCacheMax());
  }

  /**
   * Opens the connection and loads the classes of a check, which takes a new JVM longer than the usual timeout. Call it
   * when the service starts, before traffic comes. It returns within two seconds, also if the server does not answer.
   */
  public void warmUp() throws InterruptedException {
    // A domain without rules has no limits, so this charges nothing.
    tollgate.v1.Request request = Codec.messageOf(Request.of("warm-up", Descriptor.of("warm-up", "")));
    try {
      get(batcher.check(request, deadlineAfter(WARM_UP_TIMEOUT)));
    } catch (RuntimeException noAnswer) {
      // A service can start while the server is down; its requests get the default decision.
    }
  }

  /** Closes the connection. Checks from then on have no answer. */
  @Override
  public void close() {
    connection.close();
  }

  /**
   * Charges the hits of a request if it is allowed. The server decides each request with a request id, also if its key
   * is in the deny cache.
   *
   * @throws InvalidRequestException if the request is invalid
   * @throws CancellationException if the caller cancels its context
   * @throws InterruptedException if the thread is interrupted; a check that was sent may be charged
   */
  @Override
  public Decision check(Request request) throws InterruptedException {
    return get(checkAsync(request));
  }

  /**
   * Does the same without a thread that waits. Errors are those of {@link #check}. If the future is canceled before the
   * check is sent, nothing is charged.
   */
  public CompletableFuture<Decision> checkAsync(Request request) {
    long start = System.nanoTime();
    tollgate.v1.Request message;
    try {
      message = Codec.messageOf(request);
    } catch (InvalidRequestException error) {
      options.metrics().checked(Outcome.FAILED, elapsed(start));
      return CompletableFuture.failedFuture(error);
    }
    CounterKey key = Codec.countersOf(message);
    long[] hits = Codec.hitsOf(message);
    Optional<Decision> local =
        message.getRequestId().isEmpty() ? denials.denied(key, hits, start) : Optional.empty();
    if (local.isPresent()) {
      options.metrics().checked(Outcome.DENIED_LOCALLY, elapsed(start));
      return CompletableFuture.completedFuture(local.get());
    }
    return ask(message, start, key, hits);
  }

  private CompletableFuture<Decision> ask(
      tollgate.v1.Request message, long start, CounterKey key, long[] hits) {
    Context caller = Context.current();
    CompletableFuture<Decision> result = new CompletableFuture<>();
    denials.begin(key);
    CompletableFuture<Reply> reply = batcher.check(message, deadlineAfter(options.timeout()));
    Context.CancellationListener ended = context -> reply.completeExceptionally(endOf(context));
    caller.addListener(ended, Runnable::run);
    reply.whenComplete(
        (answered, error) -> {
          caller.removeListener(ended);
          Conclusion conclusion = conclude(answered == null ? null : answered.answer(), error, caller);
          if (conclusion.outcome == Outcome.DENIED) {
            denials.refuse(key, hits, conclusion.decision, answered.sent());
          }
          denials.end(key);
          try {
            // Counted before the caller goes on, so that it finds its check counted.
            options.metrics().checked(conclusion.outcome, elapsed(start));
          } finally {
            conclusion.complete(result);
          }
        });
    // If the caller cancels the future; otherwise the reply has ended already.
    result.whenComplete((decision, error) -> reply.cancel(false));
    return result;
  }

  /**
   * Answers what is left, and charges nothing. The decision is a denial if a limit lets nothing pass now. Errors are
   * those of {@link #check}.
   */
  public Decision peek(Request request) throws InterruptedException {
    PeekRequest message =
        PeekRequest.newBuilder().addRequests(Codec.peekOf(Codec.messageOf(request))).build();
    return conclude(
        connection
            .call(RateLimiterGrpc.getPeekMethod(), message, deadlineAfter(options.timeout()))
            .thenApply(response -> only(response.getAnswersList())));
  }

  /**
   * Gives the hits of an earlier check back. No decision stands in for a missing answer.
   *
   * @throws InvalidRequestException if the request is invalid
   * @throws NoAnswerException if the server gives no answer; the hits may have been given back or not
   * @throws CancellationException if the caller cancels its context
   * @throws InterruptedException if the thread is interrupted; the hits may have been given back or not
   */
  public Decision refund(Request request) throws InterruptedException {
    tollgate.v1.Request message = Codec.messageOf(request.withRequestId(null));
    RefundRequest refund = RefundRequest.newBuilder().addRequests(message).build();
    Decision decision;
    try {
      decision =
          conclude(
              connection
                  .call(RateLimiterGrpc.getRefundMethod(), refund, deadlineAfter(options.timeout()))
                  .thenApply(response -> only(response.getAnswersList())));
    } finally {
      // Also without an answer, because the server may have given the hits back.
      denials.refund(Codec.countersOf(message), System.nanoTime());
    }
    if (decision.noAnswer() != null) {
      throw new NoAnswerException(decision.noAnswer());
    }
    return decision;
  }

  /**
   * Holds the hits of a request until {@link #settle} says how many were used. All limits hold them, or none does. The
   * server is always asked; without an answer, {@link OnNoAnswer} decides. Errors are those of {@link #check}.
   */
  public Reservation reserve(Request request, HoldTerms terms) throws InterruptedException {
    return get(reserveAsync(request, terms));
  }

  /** Does the same without a thread that waits. Canceling the future does not cancel the reservation. */
  public CompletableFuture<Reservation> reserveAsync(Request request, HoldTerms terms) {
    // Chosen here, so that a reservation whose answer is lost can be settled.
    String id = UUID.randomUUID().toString();
    ReserveRequest message;
    try {
      message = Codec.reserveOf(request, terms, id);
    } catch (InvalidRequestException error) {
      return CompletableFuture.failedFuture(error);
    }
    Context caller = Context.current();
    CompletableFuture<Reservation> result = new CompletableFuture<>();
    connection
        .call(RateLimiterGrpc.getReserveMethod(), message, deadlineAfter(options.timeout()))
        .whenComplete(
            (response, error) -> {
              Conclusion conclusion = conclude(response == null ? null : response.getAnswer(), error, caller);
              if (conclusion.error != null) {
                result.completeExceptionally(conclusion.error);
                return;
              }
              boolean answered = conclusion.decision.noAnswer() == null;
              String held = answered ? response.getReservationId() : id;
              result.complete(new Reservation(request, conclusion.decision, held));
            });
    return result;
  }

  /**
   * Ends a reservation at the hits that were used, for each descriptor without hits of its own: gives the rest back, or
   * charges what is missing. It does not end with the caller's context. If nothing is held, it does nothing.
   *
   * @throws InvalidRequestException if the number is negative
   * @throws NoAnswerException if the server gives no answer; repeat the call, which then answers as the first one
   * @throws InterruptedException if the thread is interrupted; the settlement is sent nevertheless
   */
  public Settlement settle(Reservation reservation, long actual) throws InterruptedException {
    return get(settleAsync(reservation, actual));
  }

  /** Does the same without a thread that waits. The settlement is sent before it returns. */
  public CompletableFuture<Settlement> settleAsync(Reservation reservation, long actual) {
    return end(
        reservation,
        deadline ->
            connection
                .call(RateLimiterGrpc.getSettleMethod(), Codec.settleOf(reservation, actual), deadline)
                .thenApply(response -> Codec.settlementOf(response.getLimitsList(), response.getUnknown())));
  }

  /** Ends a reservation of which nothing was used. Errors are those of {@link #settle}. */
  public Settlement cancel(Reservation reservation) throws InterruptedException {
    return get(
        end(
            reservation,
            deadline ->
                connection
                    .call(RateLimiterGrpc.getCancelMethod(), Codec.cancelOf(reservation), deadline)
                    .thenApply(response -> Codec.settlementOf(response.getLimitsList(), response.getUnknown()))));
  }

  private CompletableFuture<Settlement> end(
      Reservation reservation, Function<Deadline, CompletableFuture<Settlement>> call) {
    if (reservation.id().isEmpty()) {
      return CompletableFuture.completedFuture(new Settlement(List.of(), false));
    }
    CounterKey key = Codec.countersOf(Codec.messageOf(reservation.request()));
    CompletableFuture<Settlement> result = new CompletableFuture<>();
    // Not the context of the caller: what was used is charged also if the caller goes away.
    Context before = Context.ROOT.attach();
    try {
      call.apply(deadlineAfter(options.timeout()))
          .whenComplete(
              (settlement, error) -> {
                // Also without an answer, because the server may have given hits back.
                denials.refund(key, System.nanoTime());
                if (error == null) {
                  result.complete(settlement);
                  return;
                }
                Status reason = reasonOf(error);
                result.completeExceptionally(
                    reason.getCode() == Status.Code.INVALID_ARGUMENT
                        ? new InvalidRequestException(reason.getDescription())
                        : new NoAnswerException(reason));
              });
    } catch (RuntimeException error) {
      // An invalid number, or thrown by code of the user.
      result.completeExceptionally(error);
    } finally {
      Context.ROOT.detach(before);
    }
    return result;
  }

  ClientOptions options() {
    return options;
  }

  /** The number of checks that wait for a call. */
  int queued() {
    return batcher.queued();
  }

  private static Answer only(List<Answer> answers) {
    if (answers.size() != 1) {
      String problem = answers.size() + " answers to one request";
      throw Status.INTERNAL.withDescription(problem).asRuntimeException();
    }
    return answers.get(0);
  }

  private Decision conclude(CompletableFuture<Answer> call) throws InterruptedException {
    Context caller = Context.current();
    CompletableFuture<Decision> result = new CompletableFuture<>();
    call.whenComplete((answer, error) -> conclude(answer, error, caller).complete(result));
    return get(result);
  }

  /** How a call ended: with a decision, or with an error of the caller. */
  private record Conclusion(Outcome outcome, Decision decision, RuntimeException error) {

    void complete(CompletableFuture<Decision> result) {
      if (error != null) {
        result.completeExceptionally(error);
      } else {
        result.complete(decision);
      }
    }
  }

  /** Makes a decision of an answer or of the reason why there is none. */
  private Conclusion conclude(Answer answer, Throwable error, Context caller) {
    Status reason;
    if (error == null) {
      try {
        Decision decision = Codec.decisionOf(answer);
        return new Conclusion(decision.allowed() ? Outcome.ALLOWED : Outcome.DENIED, decision, null);
      } catch (RuntimeException undecided) {
        reason = Status.fromThrowable(undecided);
      }
    } else {
      reason = reasonOf(error);
    }
    if (reason.getCode() == Status.Code.INVALID_ARGUMENT) {
      return new Conclusion(Outcome.FAILED, null, new InvalidRequestException(reason.getDescription()));
    }
    if (error instanceof CancellationException || isCanceled(caller)) {
      return new Conclusion(Outcome.FAILED, null, new CancellationException("the caller canceled the call"));
    }
    Outcome outcome = reason == Batcher.QUEUE_FULL ? Outcome.QUEUE_FULL : Outcome.NO_ANSWER;
    return new Conclusion(outcome, Decision.withoutAnswer(options.onNoAnswer(), reason), null);
  }

  private static Status reasonOf(Throwable error) {
    return error instanceof TimeoutException
        ? Status.DEADLINE_EXCEEDED.withDescription("the server gave no answer in time")
        : Status.fromThrowable(error);
  }

  private static Exception endOf(Context caller) {
    return isCanceled(caller) ? new CancellationException() : new TimeoutException();
  }

  // A deadline that has passed is no cancellation: the default decides then.
  private static boolean isCanceled(Context caller) {
    return caller.isCancelled() && !(caller.cancellationCause() instanceof TimeoutException);
  }

  private static Deadline deadlineAfter(Duration timeout) {
    Deadline deadline = Deadline.after(timeout.toNanos(), TimeUnit.NANOSECONDS);
    Deadline ofCaller = Context.current().getDeadline();
    return ofCaller == null ? deadline : deadline.minimum(ofCaller);
  }

  private static Duration elapsed(long start) {
    return Duration.ofNanos(System.nanoTime() - start);
  }

  private static <T> T get(CompletableFuture<T> future) throws InterruptedException {
    try {
      return future.get();
    } catch (ExecutionException error) {
      if (error.getCause() instanceof RuntimeException cause) {
        throw cause;
      }
      throw new IllegalStateException(error.getCause());
    } finally {
      // If the thread was interrupted; otherwise the future has ended already.
      future.cancel(false);
    }
  }
}
