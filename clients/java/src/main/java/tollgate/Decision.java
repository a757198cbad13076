package tollgate;

import io.grpc.Context;
import java.time.Duration;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalLong;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

/**
 * What to do with a request.
 *
 * @param delay the time that an allowed request waits before it goes on; see {@link #awaitTurn}
 * @param retryAfter the time until a denied request would pass; zero if it never would, or without an answer
 * @param limits those that apply, in the order of the descriptors
 * @param degraded whether the server decided a limit without the owner of its counter
 * @param source what decided
 * @param noAnswer why the server gave no answer, if {@link OnNoAnswer} has decided; otherwise null
 * @param neverBecause why a denied request would never pass, with the largest amount that can; empty if it may pass later
 */
public record Decision(
    boolean allowed,
    Duration delay,
    Duration retryAfter,
    List<LimitStatus> limits,
    boolean degraded,
    Source source,
    NoAnswerException noAnswer,
    String neverBecause) {

  /** The time after which a request may pass that is denied because the server gave no answer. */
  public static final Duration NO_ANSWER_WAIT = Duration.ofSeconds(1);

  public Decision {
    limits = List.copyOf(limits);
  }

  static Decision withoutAnswer(OnNoAnswer fallback, NoAnswerException reason) {
    boolean allowed = fallback == OnNoAnswer.ALLOW;
    return new Decision(allowed, Duration.ZERO, Duration.ZERO, List.of(), false, Source.DEFAULT, reason, "");
  }

  /**
   * The limit to report in headers: a limit that denies the request comes first, then the one with the fewest remaining
   * hits, then, of those that deny, the one with the longest wait. It is empty if no limit applies.
   */
  public Optional<LimitStatus> tightest() {
    Comparator<LimitStatus> order =
        Comparator.comparing((LimitStatus limit) -> !denies(limit))
            .thenComparing(LimitStatus::remaining)
            .thenComparing(limit -> denies(limit) ? limit.resetAfter().negated() : Duration.ZERO);
    return limits.stream().min(order);
  }

  private boolean denies(LimitStatus limit) {
    return !allowed && limit.refused();
  }

  /**
   * The headers of every response to a request with a limit: the tightest limit, and what is left of it. Without a reset
   * if the request never passes.
   */
  public Map<String, String> limitHeaders() {
    Map<String, String> headers = new LinkedHashMap<>();
    tightest()
        .ifPresent(
            limit -> {
              headers.put("RateLimit-Limit", Long.toString(limit.requestsPerUnit()));
              headers.put("RateLimit-Remaining", Long.toString(limit.remaining()));
              if (neverBecause.isEmpty()) {
                headers.put("RateLimit-Reset", Long.toString(wholeSeconds(limit.resetAfter())));
              }
            });
    return headers;
  }

  /** The status of the response to a denied request: 429, or 503 if the decision is the default one. */
  public int httpStatus() {
    return source == Source.DEFAULT ? 503 : 429;
  }

  /**
   * The value of the header Retry-After: until the denied request would pass, and a second if the decision is the default
   * one. Empty if the request is allowed, or never passes.
   */
  public OptionalLong retryAfterSeconds() {
    Duration wait = source == Source.DEFAULT ? NO_ANSWER_WAIT : retryAfter;
    return allowed || wait.isZero() ? OptionalLong.empty() : OptionalLong.of(wholeSeconds(wait));
  }

  /**
   * The body of the response to a denied request: why, as a text, or as a problem (RFC 9457) if the header Accept of the
   * request has its type.
   *
   * @param accept the value of that header; null if there is none
   */
  public RefusalBody refusalBody(String accept) {
    if (accept == null || !accept.toLowerCase(Locale.ROOT).contains(RefusalBody.PROBLEM)) {
      return new RefusalBody("text/plain; charset=utf-8", refusalReason());
    }
    return RefusalBody.problem(httpStatus(), refusalReason());
  }

  /** Why the request is denied, in one line. */
  public String refusalReason() {
    if (source == Source.DEFAULT) {
      return "the rate limiter gave no answer";
    }
    return neverBecause.isEmpty() ? "rate limit exceeded" : neverBecause;
  }

  /**
   * Waits for the delay of the decision; returns at once if there is none.
   *
   * @throws CancellationException if the {@link Context} of the caller ends earlier
   */
  public void awaitTurn() throws InterruptedException {
    if (delay.isZero()) {
      return;
    }
    CountDownLatch ended = new CountDownLatch(1);
    Context.CancellationListener listener = context -> ended.countDown();
    Context.current().addListener(listener, Runnable::run);
    try {
      if (ended.await(delay.toNanos(), TimeUnit.NANOSECONDS)) {
        throw new CancellationException("the caller went away before the turn of its request");
      }
    } finally {
      Context.current().removeListener(listener);
    }
  }

  /** The decision of this source when this time has passed, and so many more hits are left. */
  Decision after(Duration elapsed, Source source, long more) {
    List<LimitStatus> later = limits.stream().map(limit -> limit.after(elapsed, more)).toList();
    return new Decision(allowed, delay, rest(retryAfter, elapsed), later, degraded, source, noAnswer, neverBecause);
  }

  static Duration rest(Duration time, Duration elapsed) {
    return time.compareTo(elapsed) > 0 ? time.minus(elapsed) : Duration.ZERO;
  }

  // Rounded up: a caller that waits for them is not refused for waiting too short.
  private static long wholeSeconds(Duration time) {
    return time.plusNanos(999_999_999).toSeconds();
  }
}
