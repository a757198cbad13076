package tollgate;

import io.grpc.Context;
import io.grpc.Deadline;
import io.grpc.Status;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import tollgate.v1.Answer;
import tollgate.v1.CheckRequest;
import tollgate.v1.RateLimiterGrpc;

/**
 * Collects checks while calls are under way, and sends them together when one of these returns. No timer delays a
 * check: it is sent at once if fewer calls are under way than may be.
 */
final class Batcher {

  // Bounds the bytes of a batch: a message may have 4 MiB.
  private static final int BATCH_BYTES_MAX = 1 << 20;

  private final Connection connection;
  private final Metrics metrics;
  private final int callsMax;
  private final int batchMax;
  private final int queueMax;
  /** Says that {@code queueMax} checks wait. */
  final NoAnswerException full;

  private int calls;
  // Checks that wait. Invariant: empty unless callsMax calls are under way.
  private final Set<Check> queue = new LinkedHashSet<>();

  /** The answer to a check that was sent at this instant. */
  record Reply(Answer answer, long sent) {}

  /** A check on its way. */
  private static final class Check extends CompletableFuture<Reply> {
    private final tollgate.v1.Request request;
    private final Deadline deadline;

    private Check(tollgate.v1.Request request, Deadline deadline) {
      this.request = request;
      this.deadline = deadline;
    }
  }

  Batcher(Connection connection, ClientOptions options) {
    this.connection = connection;
    metrics = options.metrics;
    callsMax = options.callsMax;
    batchMax = options.batchMax;
    queueMax = options.queueMax;
    full = new NoAnswerException(Status.Code.RESOURCE_EXHAUSTED, queueMax + " checks wait already");
  }

  /** Ends at the deadline at the latest. A check that ends earlier, because it is canceled, is no longer sent. */
  CompletableFuture<Reply> check(tollgate.v1.Request request, Deadline deadline) {
    Check check = new Check(request, deadline);
    boolean idle;
    synchronized (this) {
      idle = calls < callsMax;
      if (idle) {
        calls++;
      } else if (queue.size() >= queueMax) {
        return CompletableFuture.failedFuture(full);
      } else {
        queue.add(check);
      }
    }
    check.orTimeout(deadline.timeRemaining(TimeUnit.NANOSECONDS), TimeUnit.NANOSECONDS);
    check.whenComplete(
        (reply, error) -> {
          if (error != null) {
            withdraw(check);
          }
        });
    if (idle) {
      send(List.of(check), this::sendNext);
    }
    return check;
  }

  /** The number of checks that wait for a call. */
  synchronized int queued() {
    return queue.size();
  }

  private synchronized void withdraw(Check check) {
    queue.remove(check);
  }

  private void sendNext() {
    List<Check> batch = next();
    if (!batch.isEmpty()) {
      send(batch, this::sendNext);
    }
  }

  // If no check waits, the call of the caller is over.
  private synchronized List<Check> next() {
    List<Check> batch = new ArrayList<>();
    int bytes = 0;
    for (Iterator<Check> waiting = queue.iterator(); waiting.hasNext() && batch.size() < batchMax; ) {
      Check check = waiting.next();
      bytes += check.request.getSerializedSize();
      if (!batch.isEmpty() && bytes > BATCH_BYTES_MAX) {
        break;
      }
      waiting.remove();
      batch.add(check);
    }
    if (batch.isEmpty()) {
      calls--;
    }
    return batch;
  }

  /** Makes one call, replies to each check, and goes on with {@code then}. */
  private void send(List<Check> checks, Runnable then) {
    // Without those whose caller has gone, or whose time is over.
    List<Check> batch = checks.stream().filter(check -> !check.isDone()).toList();
    if (batch.isEmpty()) {
      then.run();
      return;
    }
    CheckRequest.Builder request = CheckRequest.newBuilder();
    Deadline deadline = batch.get(0).deadline;
    for (Check check : batch) {
      request.addRequests(check.request);
      deadline = deadline.isBefore(check.deadline) ? check.deadline : deadline;
    }
    if (!connection.isClosed()) {
      metrics.sent(batch.size());
    }
    long sent = System.nanoTime();
    Deadline latest = deadline;
    // Not the context of a caller: the others would share its end.
    Context.ROOT.run(
        () ->
            connection
                .call(RateLimiterGrpc.getCheckMethod(), request.build(), latest)
                .thenApply(response -> Codec.answersTo(batch.size(), response.getAnswersList()))
                .whenComplete((answers, error) -> conclude(batch, answers, error, sent, then)));
  }

  private void conclude(List<Check> batch, List<Answer> answers, Throwable error, long sent, Runnable then) {
    if (error != null && Status.fromThrowable(error).getCode() == Status.Code.INVALID_ARGUMENT && batch.size() > 1) {
      // The call as a whole was refused: the server allows less in one call, or one check is too large.
      int half = batch.size() / 2;
      send(batch.subList(0, half), () -> send(batch.subList(half, batch.size()), then));
      return;
    }
    then.run();
    for (int i = 0; i < batch.size(); i++) {
      if (error == null) {
        batch.get(i).complete(new Reply(answers.get(i), sent));
      } else {
        batch.get(i).completeExceptionally(error);
      }
    }
  }
}
