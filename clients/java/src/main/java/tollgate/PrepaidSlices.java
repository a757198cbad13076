package tollgate;

import io.grpc.Context;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import tollgate.Codec.CounterKey;

/**
 * Allows requests of hot keys without a call for each: a part of the limit is reserved and spent here. No more passes
 * than the limit, because the whole part is held, and stays charged if this process ends without {@link #close}.
 *
 * <p>A slice is renewed when half of it or of its time has gone, and is settled at the hits that were spent when it is
 * replaced, when it ends, and on close. Without a slice, a check asks the server as {@link TollgateClient#check} does.
 * Hits count at the time at which their slice was reserved; a slice never outlasts the window of its limit. Other
 * clients are refused while a slice holds the last hits.
 */
public final class PrepaidSlices implements AutoCloseable, Checker {

  // After a reservation that was refused, or lasts too short a time. Until the next one, checks ask the server.
  private static final Duration PAUSE = Duration.ofSeconds(1);
  // A slice that lasts shorter is not worth its calls.
  private static final Duration LASTS_MIN = Duration.ofMillis(50);
  // Before the second and the third attempt to settle a slice.
  private static final List<Duration> SETTLE_PAUSES = List.of(Duration.ofMillis(100), Duration.ofMillis(400));

  private final TollgateClient client;
  private final SliceOptions options;
  private final HoldTerms terms;
  private final Map<CounterKey, Slot> slots = new HashMap<>();
  // Reservations and settlements without an answer; each call ends by the timeout of the client.
  private final Set<CompletableFuture<Void>> underWay = ConcurrentHashMap.newKeySet();
  private boolean closed;

  /** What is known of one key. A slot without a slice is removed, unless one is on its way or a pause goes on. */
  private static final class Slot {
    private Slice slice;
    private boolean isRenewing;
    private boolean isPaused;
  }

  /** Hits that this process may spend. */
  private static final class Slice {
    private final Reservation reservation;
    private final long hits;
    // The reservation was sent at this instant, so its times on the server end after theirs from here or later.
    private final long sent;
    // Nanoseconds from `sent` for which the hits may be spent.
    private final long lasts;
    private long spent;

    private Slice(Reservation reservation, SliceOptions options, long sent) {
      this.reservation = reservation;
      this.hits = options.hits();
      this.sent = sent;
      this.lasts = lastsOf(reservation.decision(), options.ttl()).toNanos();
    }

    // Hits of a window that has ended must not be spent in the next one.
    private static Duration lastsOf(Decision decision, Duration ttl) {
      return Stream.concat(Stream.of(ttl), decision.limits().stream().map(LimitStatus::resetAfter))
          .min(Comparator.naturalOrder())
          .orElseThrow();
    }

    private Optional<Decision> spend(long wanted, long now) {
      if (now - sent >= lasts || wanted > hits - spent) {
        return Optional.empty();
      }
      spent += wanted;
      return Optional.of(reservation.decision().fromSlice(hits - spent, Duration.ofNanos(now - sent)));
    }

    private boolean isRunningOut(long now) {
      return spent >= hits - hits / 2 || now - sent >= lasts / 2;
    }
  }

  /** Close it before the client. */
  public PrepaidSlices(TollgateClient client, SliceOptions options) {
    this.client = client;
    this.options = options;
    terms = HoldTerms.chargedAfter(options.ttl());
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
    Optional<Decision> decision = spend(request, start);
    if (decision.isEmpty()) {
      return client.check(request);
    }
    client.options().metrics().checked(Outcome.PREPAID, Duration.ofNanos(System.nanoTime() - start));
    return decision.get();
  }

  /**
   * Settles all slices, which takes at most four timeouts of the client and half a second. Checks from then on ask the
   * server.
   */
  @Override
  public void close() {
    List<Slice> slices = new ArrayList<>();
    synchronized (this) {
      closed = true;
      for (Slot slot : slots.values()) {
        if (slot.slice != null) {
          slices.add(slot.slice);
        }
        slot.slice = null;
      }
      slots.clear();
    }
    slices.forEach(this::settle);
    // A reservation that is answered now is settled too.
    while (!underWay.isEmpty()) {
      CompletableFuture.allOf(underWay.toArray(CompletableFuture<?>[]::new)).join();
    }
  }

  private Optional<Decision> spend(Request request, long now) {
    if (request.descriptors().stream().anyMatch(each -> each.hits() != null)) {
      return Optional.empty();
    }
    tollgate.v1.Request message;
    try {
      message = Codec.messageOf(request);
    } catch (InvalidRequestException error) {
      // The client says and counts it.
      return Optional.empty();
    }
    if (message.getHits() > options.hits() || !message.getRequestId().isEmpty()) {
      return Optional.empty();
    }
    CounterKey key = Codec.countersOf(message);
    Slot slot;
    CompletableFuture<Void> renewal;
    Optional<Decision> decision = Optional.empty();
    synchronized (this) {
      if (closed || (slots.size() >= options.maxKeys() && !slots.containsKey(key))) {
        return Optional.empty();
      }
      slot = slots.computeIfAbsent(key, unused -> new Slot());
      if (slot.slice != null) {
        decision = slot.slice.spend(Math.max(request.hits(), 1), now);
      }
      if (slot.isRenewing || slot.isPaused || (slot.slice != null && !slot.slice.isRunningOut(now))) {
        return decision;
      }
      slot.isRenewing = true;
      renewal = begin();
    }
    long sent = System.nanoTime();
    reserve(request.withHits(options.hits()))
        .whenComplete(
            (reservation, error) -> {
              replace(key, slot, reservation, sent);
              renewal.complete(null);
            });
    return decision;
  }

  private CompletableFuture<Void> begin() {
    CompletableFuture<Void> call = new CompletableFuture<>();
    underWay.add(call);
    call.whenComplete((done, error) -> underWay.remove(call));
    return call;
  }

  private CompletableFuture<Reservation> reserve(Request request) {
    // Not the context of a caller: the slice is for all of them.
    Context before = Context.ROOT.attach();
    try {
      return client.reserveAsync(request, terms);
    } catch (RuntimeException error) {
      // Thrown by code of the user.
      return CompletableFuture.failedFuture(error);
    } finally {
      Context.ROOT.detach(before);
    }
  }

  /** Takes the answer to a reservation; {@code reservation} is null if it failed. */
  private void replace(CounterKey key, Slot slot, Reservation reservation, long sent) {
    Slice unused = reservation == null ? null : new Slice(reservation, options, sent);
    synchronized (this) {
      slot.isRenewing = false;
      if (!closed && reservation != null && isHeld(reservation) && unused.lasts >= LASTS_MIN.toNanos()) {
        Slice next = unused;
        unused = slot.slice;
        slot.slice = next;
        Duration rest = Duration.ofNanos(sent + next.lasts - System.nanoTime());
        after(rest, () -> expire(key, slot, next));
      } else {
        slot.isPaused = true;
        after(PAUSE, () -> resume(key, slot));
      }
    }
    if (unused != null) {
      settle(unused);
    }
  }

  // A turn in a queue cannot be spent later.
  private static boolean isHeld(Reservation reservation) {
    Decision decision = reservation.decision();
    return decision.noAnswer() == null && decision.delay().isZero() && !reservation.id().isEmpty();
  }

  private void expire(CounterKey key, Slot slot, Slice slice) {
    synchronized (this) {
      if (slot.slice != slice) {
        return;
      }
      slot.slice = null;
      removeIfUnused(key, slot);
    }
    settle(slice);
  }

  private synchronized void resume(CounterKey key, Slot slot) {
    slot.isPaused = false;
    removeIfUnused(key, slot);
  }

  private void removeIfUnused(CounterKey key, Slot slot) {
    if (slot.slice == null && !slot.isRenewing && !slot.isPaused) {
      slots.remove(key, slot);
    }
  }

  private void settle(Slice slice) {
    attempt(slice, SETTLE_PAUSES.iterator(), begin());
  }

  /** Settles a slice, again after each of the pauses while it fails. The id makes the settlement count once. */
  private void attempt(Slice slice, Iterator<Duration> pauses, CompletableFuture<Void> settlement) {
    client
        .settleAsync(slice.reservation, slice.spent)
        .whenComplete(
            (settled, error) -> {
              if (error != null && pauses.hasNext()) {
                after(pauses.next(), () -> attempt(slice, pauses, settlement));
                return;
              }
              try {
                if (error != null) {
                  reportLost(slice);
                }
              } finally {
                settlement.complete(null);
              }
            });
  }

  private void reportLost(Slice slice) {
    long left = slice.hits - slice.spent;
    // Without an answer to its reservation, it is not known whether the slice was held.
    if (left > 0 && slice.reservation.decision().noAnswer() == null) {
      client.options().metrics().lost(left);
    }
  }

  private static void after(Duration time, Runnable task) {
    CompletableFuture.delayedExecutor(time.toNanos(), TimeUnit.NANOSECONDS).execute(task);
  }
}
