package tollgate;

import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import tollgate.Codec.CounterKey;
import tollgate.SliceTable.Actions;
import tollgate.SliceTable.End;

/**
 * Allows requests of hot keys without a call for each: a part of the limit is reserved and spent here. No more passes
 * than the limit, because the whole part is held, and stays charged if this process ends without {@link #close}.
 *
 * <p>Without a slice, a check asks the server as {@link TollgateClient#check} does. Hits count at the time at which
 * their slice was reserved; a slice never outlasts the window of its limit. Other clients are refused while a slice
 * holds the last hits.
 */
public final class PrepaidSlices implements AutoCloseable, Checker {

  private final TollgateClient client;
  private final Terms terms;
  // Guarded by this.
  private final SliceTable table;
  // Wake a key when something is due.
  private final Map<CounterKey, CompletableFuture<Void>> timers = new HashMap<>();

  /** Close it before the client. */
  public PrepaidSlices(TollgateClient client, SliceOptions options) {
    this.client = client;
    terms = new Terms(options.ttl(), OnExpiry.CHARGE);
    table = new SliceTable(options);
  }

  /**
   * Charges the hits of a request if it is allowed. Use it for requests of keys that many requests have. A request with
   * more hits than a slice, with a descriptor that has hits of its own, or with a request id asks the server.
   *
   * @throws InvalidRequestException if the request is invalid
   * @throws CancellationException if the caller cancels its context
   * @throws InterruptedException if the thread is interrupted
   */
  @Override
  public Decision check(Request request) throws InterruptedException {
    long start = System.nanoTime();
    Optional<Decision> decision = table.serves(request) ? spend(request, start) : Optional.empty();
    if (decision.isEmpty()) {
      return client.check(request);
    }
    client.metrics.checked(Outcome.PREPAID, Duration.ofNanos(System.nanoTime() - start));
    return decision.get();
  }

  /**
   * Settles all slices, which takes at most four timeouts of the client and half a second. Checks from then on ask the
   * server.
   */
  @Override
  public synchronized void close() {
    long now = System.nanoTime();
    table.close(now).forEach((key, actions) -> begin(key, actions, now));
    boolean interrupted = false;
    while (!table.isEmpty()) {
      try {
        wait();
      } catch (InterruptedException error) {
        interrupted = true;
      }
    }
    if (interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  private Optional<Decision> spend(Request request, long now) {
    CounterKey key;
    try {
      key = Codec.countersOf(Codec.messageOf(request));
    } catch (InvalidRequestException error) {
      // The client says and counts it.
      return Optional.empty();
    }
    Actions actions = new Actions();
    synchronized (this) {
      Optional<Decision> decision = table.check(key, request, now, actions);
      if (!actions.isEmpty()) {
        begin(key, actions, now);
      }
      return decision;
    }
  }

  /** A change of the state of a key. */
  private interface Step {
    void change(long now, Actions actions);
  }

  private synchronized void step(CounterKey key, Step step) {
    long now = System.nanoTime();
    Actions actions = new Actions();
    step.change(now, actions);
    begin(key, actions, now);
  }

  /** Begins the calls of a key in other threads, and sets its timer. It is called under the lock. */
  private void begin(CounterKey key, Actions actions, long now) {
    // Other threads have no context of a caller: a slice is for all of them.
    if (actions.reserve != null) {
      CompletableFuture.runAsync(() -> reserve(key, actions.reserve));
    }
    for (End end : actions.ends) {
      CompletableFuture.runAsync(() -> end(key, end));
    }
    if (actions.lost > 0) {
      client.metrics.lost(actions.lost);
    }
    CompletableFuture<Void> timer = timers.remove(key);
    if (timer != null) {
      timer.cancel(false);
    }
    OptionalLong rest = table.nextDue(key, now);
    if (rest.isPresent()) {
      CompletableFuture<Void> next = new CompletableFuture<>();
      next.thenRunAsync(() -> step(key, (at, due) -> table.advance(key, at, due)));
      timers.put(key, next.completeOnTimeout(null, rest.getAsLong(), TimeUnit.NANOSECONDS));
    }
    notifyAll();
  }

  private void reserve(CounterKey key, Request request) {
    client
        .reserveAsync(request, terms)
        // An error says that the request is invalid.
        .whenComplete((reservation, error) -> step(key, (now, due) -> table.reserved(key, reservation, now, due)));
  }

  private void end(CounterKey key, End end) {
    CompletableFuture<Settlement> call =
        end.spent == null ? client.cancelAsync(end.reservation) : client.settleAsync(end.reservation, end.spent);
    call.whenComplete(
        (settlement, error) ->
            step(key, (now, due) -> table.ended(key, end, TollgateClient.causeOf(error), now, due)));
  }
}
