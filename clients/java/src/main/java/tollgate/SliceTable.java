package tollgate;

import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.stream.LongStream;
import java.util.stream.Stream;
import tollgate.Codec.CounterKey;

/**
 * The state of the slices of all keys, without calls and without a clock. Instants are nanoseconds of a monotonic
 * clock, which are compared by their difference.
 */
final class SliceTable {

  // The longest pause between attempts to reserve a slice that the server refuses.
  private static final Duration PAUSE_MAX = Duration.ofSeconds(1);
  // A slice that lasts shorter is not worth its calls.
  private static final Duration LASTS_MIN = Duration.ofMillis(50);
  // Before the end of a slice is repeated.
  private static final List<Duration> END_PAUSES = List.of(Duration.ofMillis(100), Duration.ofMillis(400));

  private final SliceOptions options;
  private final Map<CounterKey, KeyState> keys = new HashMap<>();
  private boolean closed;

  SliceTable(SliceOptions options) {
    this.options = options;
  }

  /** What a step of the state begins. */
  static final class Actions {
    /** What is reserved; null for nothing. */
    Request reserve;

    final List<End> ends = new ArrayList<>();
    long lost;

    boolean isEmpty() {
      return reserve == null && ends.isEmpty() && lost == 0;
    }
  }

  /** A settlement or a cancellation of a reservation. */
  static final class End {
    final Reservation reservation;
    /** The hits to settle; null for a cancellation, because the reservation is no slice. */
    final Long spent;

    // Hits that stay charged if the end has no answer.
    private final long unspent;
    // Those without an answer.
    private int attempts;
    // Null while a call is under way.
    private Long repeatAt;

    private End(Reservation reservation, Long spent, long unspent) {
      this.reservation = reservation;
      this.spent = spent;
      this.unspent = unspent;
    }
  }

  /** Hits that this process may spend. */
  private static final class Slice {
    private final Reservation reservation;
    // Before the server reserved, so the slice ends no later than there.
    private final long begin;
    private final long renewAt;
    private final long until;
    private long left;
    // Whether little is left, or a check did not fit.
    private boolean isLow;

    private Slice(Reservation reservation, long begin, long lasts, long left) {
      this.reservation = reservation;
      this.begin = begin;
      until = begin + lasts;
      renewAt = until - lasts / 4;
      this.left = left;
    }
  }

  /** The state of one key, which is forgotten when it is idle without a slice. */
  private static final class KeyState {
    private final Request request;
    private Slice slice;
    private boolean isReserving;
    // When the last reservation was sent.
    private long begin;
    // Nothing is reserved until this instant. Null without a pause.
    private Long pausedUntil;
    private final List<End> ends = new ArrayList<>();

    private KeyState(Request request) {
      this.request = request;
    }

    // One reservation or end at a time bounds the calls.
    private boolean isIdle() {
      return !isReserving && pausedUntil == null && ends.isEmpty();
    }

    private void reserve(long now, Actions actions) {
      isReserving = true;
      begin = now;
      actions.reserve = request;
    }

    private void end(End end, Actions actions) {
      ends.add(end);
      actions.ends.add(end);
    }
  }

  /** Says whether slices may decide the request. */
  boolean serves(Request request) {
    return (request.requestId() == null || request.requestId().isEmpty())
        && request.hits() <= options.hits()
        && request.descriptors().stream().allMatch(each -> each.hits() == null && each.onExpiry() == null);
  }

  /** The decision of a slice. Without one, the server decides. */
  Optional<Decision> check(CounterKey key, Request request, long now, Actions actions) {
    advance(key, now, actions);
    KeyState known = keys.get(key);
    if (known == null) {
      if (!closed && keys.size() < options.keysMax()) {
        known = new KeyState(request.withHits(options.hits()));
        keys.put(key, known);
        known.reserve(now, actions);
      }
      return Optional.empty();
    }
    Slice slice = known.slice;
    if (slice == null) {
      return Optional.empty();
    }
    long hits = Math.max(request.hits(), 1);
    boolean fits = hits <= slice.left;
    slice.left -= fits ? hits : 0;
    slice.isLow |= !fits || slice.left <= options.hits() / 4;
    renew(known, now, actions);
    if (!fits) {
      return Optional.empty();
    }
    Duration elapsed = Duration.ofNanos(now - slice.begin);
    return Optional.of(slice.reservation.decision().after(elapsed, Source.PREPAID, slice.left));
  }

  /** Takes the answer to a reservation; null if it is invalid. */
  void reserved(CounterKey key, Reservation reservation, long now, Actions actions) {
    KeyState known = keys.get(key);
    known.isReserving = false;
    Duration lasts = lasts(reservation);
    if (lasts.compareTo(LASTS_MIN) >= 0 && !closed) {
      settle(known, actions);
      known.slice = new Slice(reservation, known.begin, lasts.toNanos(), options.hits());
    } else {
      Duration pause = PAUSE_MAX;
      if (reservation != null) {
        Duration retryAfter = reservation.decision().retryAfter();
        pause = retryAfter.isZero() || retryAfter.compareTo(PAUSE_MAX) > 0 ? PAUSE_MAX : retryAfter;
        if (!reservation.id().isEmpty()) {
          // Without an answer, it is not known whether they are held.
          long held = reservation.decision().source() == Source.SERVER ? options.hits() : 0;
          known.end(new End(reservation, null, held), actions);
        }
      }
      known.pausedUntil = now + pause.toNanos();
    }
    advance(key, now, actions);
  }

  /** Takes the answer to the end of a slice; the error is null if there is none. */
  void ended(CounterKey key, End end, Throwable error, long now, Actions actions) {
    if (error instanceof NoAnswerException && end.attempts < END_PAUSES.size()) {
      end.repeatAt = now + END_PAUSES.get(end.attempts).toNanos();
      end.attempts++;
    } else {
      keys.get(key).ends.remove(end);
      actions.lost = error == null ? 0 : end.unspent;
    }
    advance(key, now, actions);
  }

  /** Ends all slices. */
  Map<CounterKey, Actions> close(long now) {
    closed = true;
    Map<CounterKey, Actions> all = new HashMap<>();
    for (CounterKey key : List.copyOf(keys.keySet())) {
      Actions actions = new Actions();
      settle(keys.get(key), actions);
      advance(key, now, actions);
      all.put(key, actions);
    }
    return all;
  }

  boolean isEmpty() {
    return keys.isEmpty();
  }

  /** The nanoseconds from now until something is due; empty if nothing will be. */
  OptionalLong nextDue(CounterKey key, long now) {
    KeyState known = keys.get(key);
    if (known == null) {
      return OptionalLong.empty();
    }
    Stream<Long> repeats = known.ends.stream().map(end -> end.repeatAt);
    Stream<Long> instants = Stream.concat(Stream.of(known.pausedUntil == null ? now : known.pausedUntil), repeats);
    LongStream ofSlice =
        known.slice == null ? LongStream.empty() : LongStream.of(known.slice.renewAt, known.slice.until);
    LongStream all = LongStream.concat(instants.filter(at -> at != null).mapToLong(at -> at), ofSlice);
    return all.map(at -> at - now).filter(rest -> rest > 0).min();
  }

  /** Does what is due, and forgets a key of which nothing is left. */
  void advance(CounterKey key, long now, Actions actions) {
    KeyState known = keys.get(key);
    if (known == null) {
      return;
    }
    for (End end : known.ends) {
      if (end.repeatAt != null && now - end.repeatAt >= 0) {
        end.repeatAt = null;
        actions.ends.add(end);
      }
    }
    if (known.pausedUntil != null && (closed || now - known.pausedUntil >= 0)) {
      known.pausedUntil = null;
    }
    Slice slice = known.slice;
    if (slice != null) {
      boolean isUnused = slice.left == options.hits();
      if (now - slice.until >= 0 || (isUnused && now - slice.renewAt >= 0)) {
        settle(known, actions);
      } else {
        renew(known, now, actions);
      }
    }
    if (known.slice == null && known.isIdle()) {
      keys.remove(key);
    }
  }

  private static void renew(KeyState known, long now, Actions actions) {
    if (known.isIdle() && (known.slice.isLow || now - known.slice.renewAt >= 0)) {
      known.reserve(now, actions);
    }
  }

  private void settle(KeyState known, Actions actions) {
    Slice ended = known.slice;
    if (ended != null) {
      known.slice = null;
      known.end(new End(ended.reservation, options.hits() - ended.left, ended.left), actions);
    }
  }

  /** The time for which a reservation may be spent; zero if it may not. */
  private Duration lasts(Reservation reservation) {
    // A turn in a queue cannot be spent later.
    if (reservation == null
        || reservation.id().isEmpty()
        || reservation.decision().source() != Source.SERVER
        || !reservation.decision().delay().isZero()) {
      return Duration.ZERO;
    }
    // Hits of a window that has ended must not be spent in the next one.
    Stream<Duration> resets = reservation.decision().limits().stream().map(LimitStatus::resetAfter);
    return Stream.concat(Stream.of(options.ttl()), resets).min(Duration::compareTo).orElseThrow();
  }
}
