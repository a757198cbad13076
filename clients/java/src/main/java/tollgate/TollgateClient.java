package tollgate;

import io.grpc.Context;
import io.grpc.Deadline;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.security.SecureRandom;
import java.time.Duration;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Function;
import java.util.function.Supplier;
import java.util.function.UnaryOperator;
import java.util.stream.Stream;
import tollgate.Batcher.Reply;
import tollgate.Codec.CounterKey;
import tollgate.v1.Answer;
import tollgate.v1.ClearLimitsRequest;
import tollgate.v1.GetLimitsRequest;
import tollgate.v1.ListLimitsRequest;
import tollgate.v1.ListLimitsResponse;
import tollgate.v1.OwnLimit;
import tollgate.v1.PeekRequest;
import tollgate.v1.RateLimiterGrpc;
import tollgate.v1.RefundRequest;
import tollgate.v1.SetLimitsRequest;

/**
 * Asks one Tollgate, which may have many replicas, whether requests may pass.
 *
 * <p>Create one client for the process and share it between threads. It balances calls over all addresses of the
 * server's name, sends concurrent checks together, and answers for keys that are known to be refused. If the server
 * gives no answer in time, {@link OnNoAnswer} decides. The methods end with the gRPC {@link Context} of the caller.
 */
public final class TollgateClient implements AutoCloseable, Checker {

  private static final Duration WARM_UP_TIMEOUT = Duration.ofSeconds(2);
  private static final SecureRandom RANDOM = new SecureRandom();

  private final Duration timeout;
  private final OnNoAnswer onNoAnswer;
  final Metrics metrics;
  private final Connection connection;
  private final Batcher batcher;
  private final DenyCache denials;

  /**
   * Does not wait for the connection, so a service can start while the server is down.
   *
   * @param target a gRPC name, such as {@code tollgate.example:8081} or {@code dns:///tollgate:8081}
   */
  public TollgateClient(String target, ClientOptions options) {
    timeout = options.timeout;
    onNoAnswer = options.onNoAnswer;
    metrics = options.metrics;
    connection = new Connection(target, options);
    batcher = new Batcher(connection, options);
    denials = new DenyCache(options.denyCacheKeys, options.denyCacheMax);
  }

  /**
   * Opens the connection and loads the classes of a check, which takes a new JVM longer than the usual timeout. Call it
   * when the service starts, before traffic comes. It returns within two seconds, also if the server does not answer.
   */
  public void warmUp() throws InterruptedException {
    // A domain without rules has no limits, so this charges nothing.
    tollgate.v1.Request request = Codec.messageOf(Request.of("warm-up", Descriptor.of("warm-up", "")));
    try {
      get(batcher.check(request, after(WARM_UP_TIMEOUT)));
    } catch (RuntimeException noAnswer) {
      // A service can start while the server is down; its requests get the default decision.
    }
  }

  /** Ends the connection, and the calls under way. Calls from then on have no answer. */
  @Override
  public void close() {
    connection.close();
  }

  /**
   * Charges the hits of a request if it is allowed. The server decides each request with a request id, also if its key
   * is in the deny cache. A check whose caller has ended its context before is not sent.
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
      message = Codec.countedOf(request);
    } catch (InvalidRequestException error) {
      metrics.checked(Outcome.FAILED, elapsed(start));
      return CompletableFuture.failedFuture(error);
    }
    CounterKey key = Codec.countersOf(message);
    long[] hits = Codec.hitsOf(message);
    Optional<Decision> local =
        message.getRequestId().isEmpty() ? denials.denied(key, hits, start) : Optional.empty();
    if (local.isPresent()) {
      metrics.checked(Outcome.DENIED_LOCALLY, elapsed(start));
      return CompletableFuture.completedFuture(local.get());
    }
    return ask(message, start, key, hits);
  }

  private CompletableFuture<Decision> ask(tollgate.v1.Request message, long start, CounterKey key, long[] hits) {
    Caller caller = caller();
    CompletableFuture<Decision> result = new CompletableFuture<>();
    denials.begin(key);
    // A caller that has gone charges nothing: the listener ends the reply at once.
    CompletableFuture<Reply> reply =
        caller.context.isCancelled() ? new CompletableFuture<>() : batcher.check(message, caller.deadline);
    Context.CancellationListener ended =
        context ->
            reply.completeExceptionally(caller.isCanceled() ? new CancellationException() : new TimeoutException());
    caller.context.addListener(ended, Runnable::run);
    reply
        .thenApply(
            answered -> {
              Decision decision = Codec.decisionOf(answered.answer());
              if (!decision.allowed()) {
                denials.refuse(key, hits, decision, answered.sent());
              }
              return decision;
            })
        .exceptionally(error -> defaultOf(failureOf(error, caller)))
        .whenComplete(
            (decision, error) -> {
              caller.context.removeListener(ended);
              denials.end(key);
              // Counted before the caller goes on, so that it finds its check counted.
              metrics.checked(error == null ? outcomeOf(decision) : Outcome.FAILED, elapsed(start));
              if (error == null) {
                result.complete(decision);
              } else {
                result.completeExceptionally(causeOf(error));
              }
            });
    // If the caller cancels the future; otherwise the reply has ended already.
    result.whenComplete((decision, error) -> reply.cancel(false));
    return result;
  }

  private Outcome outcomeOf(Decision decision) {
    if (decision.noAnswer() != null) {
      return decision.noAnswer() == batcher.full ? Outcome.QUEUE_FULL : Outcome.NO_ANSWER;
    }
    return decision.allowed() ? Outcome.ALLOWED : Outcome.DENIED;
  }

  /**
   * Answers what is left, and charges nothing. The decision is a denial if a limit lets nothing pass now. Errors are
   * those of {@link #check}.
   */
  public Decision peek(Request request) throws InterruptedException {
    PeekRequest message = PeekRequest.newBuilder().addRequests(Codec.peekOf(Codec.messageOf(request))).build();
    return get(
        call(RateLimiterGrpc.getPeekMethod(), message, response -> onlyDecision(response.getAnswersList()))
            .exceptionally(this::defaultOf));
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
    tollgate.v1.Request message = Codec.countedOf(request);
    RefundRequest refund = RefundRequest.newBuilder().addRequests(message).build();
    try {
      return get(
          call(RateLimiterGrpc.getRefundMethod(), refund, response -> onlyDecision(response.getAnswersList())));
    } finally {
      // Also without an answer, because the server may have given the hits back.
      denials.refund(Codec.countersOf(message), System.nanoTime());
    }
  }

  /**
   * Holds the hits of a request until {@link #settle(Reservation, long)} says how many were used. All limits hold them,
   * or none does. The server is always asked; without an answer, {@link OnNoAnswer} decides. Errors are those of {@link
   * #check}.
   */
  public Reservation reserve(Request request, Terms terms) throws InterruptedException {
    return get(reserveAsync(request, terms));
  }

  /** Does the same without a thread that waits. Canceling the future does not cancel the reservation. */
  public CompletableFuture<Reservation> reserveAsync(Request request, Terms terms) {
    // Chosen here, so that a reservation whose answer is lost can be settled.
    byte[] random = new byte[16];
    RANDOM.nextBytes(random);
    String id = HexFormat.of().formatHex(random);
    return encoded(() -> Codec.reserveOf(request, terms, id))
        .thenCompose(
            message ->
                call(
                    RateLimiterGrpc.getReserveMethod(),
                    message,
                    response ->
                        new Reservation(
                            request,
                            Codec.decisionOf(response.getAnswer()),
                            response.getReservationId(),
                            response.getEnded())))
        .exceptionally(error -> new Reservation(request, defaultOf(error), id, false));
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
    return settle(reservation, actual, Map.of());
  }

  /**
   * Ends a reservation as {@link #settle(Reservation, long)}, with hits of single descriptors by their index. They
   * replace the hits with which these were reserved, and the actual hits. Errors are the same; an index without a
   * descriptor is an {@link InvalidRequestException}.
   */
  public Settlement settle(Reservation reservation, long actual, Map<Integer, Long> hits) throws InterruptedException {
    return get(settleAsync(reservation, actual, hits));
  }

  /** Does the same without a thread that waits. The settlement is sent before it returns. */
  public CompletableFuture<Settlement> settleAsync(Reservation reservation, long actual) {
    return settleAsync(reservation, actual, Map.of());
  }

  /** Does the same without a thread that waits. The settlement is sent before it returns. */
  public CompletableFuture<Settlement> settleAsync(Reservation reservation, long actual, Map<Integer, Long> hits) {
    return end(
        reservation,
        RateLimiterGrpc.getSettleMethod(),
        () -> Codec.settleOf(reservation, actual, hits),
        response -> Codec.settlementOf(response.getLimitsList(), response.getUnknown()));
  }

  /** Ends a reservation of which nothing was used. Errors are those of {@link #settle(Reservation, long)}. */
  public Settlement cancel(Reservation reservation) throws InterruptedException {
    return get(cancelAsync(reservation));
  }

  /** Does the same without a thread that waits. The cancellation is sent before it returns. */
  public CompletableFuture<Settlement> cancelAsync(Reservation reservation) {
    return end(
        reservation,
        RateLimiterGrpc.getCancelMethod(),
        () -> Codec.cancelOf(reservation),
        response -> Codec.settlementOf(response.getLimitsList(), response.getUnknown()));
  }

  private <Q, A> CompletableFuture<Settlement> end(
      Reservation reservation, MethodDescriptor<Q, A> method, Supplier<Q> encode, Function<A, Settlement> decode) {
    if (reservation.id().isEmpty()) {
      return CompletableFuture.completedFuture(new Settlement(List.of(), false));
    }
    // Not the context of the caller: what was used is charged also if the caller goes away.
    Context before = Context.ROOT.attach();
    try {
      return encoded(encode)
          .thenCompose(message -> call(method, message, decode))
          .whenComplete(
              (settlement, error) -> {
                // Also without an answer, because the server may have given hits back.
                denials.refund(Codec.countersOf(Codec.messageOf(reservation.request())), System.nanoTime());
              });
    } finally {
      Context.ROOT.detach(before);
    }
  }

  /**
   * Gives keys limits of their own, in place of the numbers of their rules, with {@link ClientOptions#adminToken}. If
   * one is invalid, none is set. The results are in the order of the limits.
   *
   * @throws InvalidRequestException if the call is invalid as a whole
   * @throws NoAnswerException if the server gives no answer, also if the token is wrong; limits may be set or not
   * @throws CancellationException if the caller cancels its context
   * @throws InterruptedException if the thread is interrupted; limits may be set or not
   */
  public List<LimitResult> setLimits(SetLimitsRequest request) throws InterruptedException {
    return changeLimits(
        RateLimiterGrpc.getSetLimitsMethod(),
        Codec.sized(request),
        response -> Codec.limitResultsOf(request.getLimitsCount(), response.getResultsList()));
  }

  /** Reads the limits of their own of keys. Errors are those of {@link #setLimits}. */
  public List<LimitResult> getLimits(String domain, Descriptor... keys) throws InterruptedException {
    tollgate.v1.Request named = Codec.messageOf(Request.of(domain, keys));
    return get(
        call(
            RateLimiterGrpc.getGetLimitsMethod(),
            GetLimitsRequest.newBuilder().setDomain(domain).addAllDescriptors(named.getDescriptorsList()).build(),
            response -> Codec.limitResultsOf(keys.length, response.getResultsList())));
  }

  /**
   * Removes the limits of their own of keys: the numbers of their rules apply again. Errors are those of {@link
   * #setLimits}.
   */
  public List<LimitResult> clearLimits(String domain, Descriptor... keys) throws InterruptedException {
    tollgate.v1.Request named = Codec.messageOf(Request.of(domain, keys));
    return changeLimits(
        RateLimiterGrpc.getClearLimitsMethod(),
        ClearLimitsRequest.newBuilder().setDomain(domain).addAllDescriptors(named.getDescriptorsList()).build(),
        response -> Codec.limitResultsOf(keys.length, response.getResultsList()));
  }

  private <Q, A> List<LimitResult> changeLimits(
      MethodDescriptor<Q, A> method, Q message, Function<A, List<LimitResult>> decode) throws InterruptedException {
    try {
      return get(call(method, message, decode));
    } finally {
      // Also without an answer, because the server may have changed limits.
      denials.clear(System.nanoTime());
    }
  }

  /**
   * Reads the limits of their own of a domain, of all domains if it is empty, whose keys begin with these entries. The
   * first page is read at once, further ones as the stream goes on. Errors, also of the stream, are those of {@link
   * #setLimits}; an interrupted thread is a {@link CancellationException} and stays interrupted. In a cluster they
   * are those of all replicas.
   */
  public Stream<OwnLimit> listLimits(String domain, Entry... prefix) {
    ListLimitsRequest message = Codec.listOf(domain, List.of(prefix));
    UnaryOperator<ListLimitsResponse> next =
        page ->
            page.getNextPageToken().isEmpty()
                ? null
                : page(message.toBuilder().setPageToken(page.getNextPageToken()).build());
    return Stream.iterate(page(message), Objects::nonNull, next).flatMap(page -> page.getLimitsList().stream());
  }

  private ListLimitsResponse page(ListLimitsRequest message) {
    try {
      return get(call(RateLimiterGrpc.getListLimitsMethod(), message, Function.identity()));
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      throw new CancellationException("the thread was interrupted");
    }
  }

  /** The number of checks that wait for a call. */
  int queued() {
    return batcher.queued();
  }

  /** The caller of a call, and the end of the call. */
  private record Caller(Context context, Deadline deadline) {

    // A deadline that has passed is no cancellation: the default decides then.
    private boolean isCanceled() {
      return context.isCancelled() && !(context.cancellationCause() instanceof TimeoutException);
    }
  }

  private Caller caller() {
    Deadline deadline = after(timeout);
    Deadline ofCaller = Context.current().getDeadline();
    return new Caller(Context.current(), ofCaller == null ? deadline : deadline.minimum(ofCaller));
  }

  private static <Q> CompletableFuture<Q> encoded(Supplier<Q> encode) {
    try {
      return CompletableFuture.completedFuture(encode.get());
    } catch (InvalidRequestException error) {
      return CompletableFuture.failedFuture(error);
    }
  }

  /** Makes a call, which ends with its result or with an error for the caller. */
  private <Q, A, R> CompletableFuture<R> call(MethodDescriptor<Q, A> method, Q message, Function<A, R> decode) {
    Caller caller = caller();
    return connection
        .call(method, message, caller.deadline)
        .thenApply(decode)
        .exceptionally(
            error -> {
              throw failureOf(error, caller);
            });
  }

  private static Decision onlyDecision(List<Answer> answers) {
    return Codec.decisionOf(Codec.answersTo(1, answers).get(0));
  }

  private Decision defaultOf(Throwable error) {
    if (causeOf(error) instanceof NoAnswerException reason) {
      return Decision.withoutAnswer(onNoAnswer, reason);
    }
    throw (RuntimeException) error;
  }

  /** Says why a call has no result. */
  private RuntimeException failureOf(Throwable error, Caller caller) {
    Throwable cause = causeOf(error);
    Status status = Status.fromThrowable(cause);
    if (status.getCode() == Status.Code.INVALID_ARGUMENT) {
      return new InvalidRequestException(status.getDescription());
    }
    if (cause instanceof CancellationException || caller.isCanceled()) {
      return new CancellationException("the caller canceled the call");
    }
    if (connection.isClosed()) {
      return new NoAnswerException(Status.Code.CANCELLED, "the client is closed");
    }
    if (cause instanceof NoAnswerException noAnswer) {
      return noAnswer;
    }
    // The server may say the same of a call of its own.
    boolean isLate = status.getCode() == Status.Code.DEADLINE_EXCEEDED && caller.deadline.isExpired();
    if (cause instanceof TimeoutException || isLate) {
      return new NoAnswerException(Status.Code.DEADLINE_EXCEEDED, "no answer in time");
    }
    return new NoAnswerException(status.getCode(), Objects.requireNonNullElse(status.getDescription(), ""));
  }

  static Throwable causeOf(Throwable error) {
    return error instanceof CompletionException ? error.getCause() : error;
  }

  private static Deadline after(Duration timeout) {
    return Deadline.after(timeout.toNanos(), TimeUnit.NANOSECONDS);
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
