package com.example.tollgate;

import com.example.tollgate.Limiter.Decision;
import com.example.tollgate.Limiter.OnError;
import envoy.extensions.common.ratelimit.v3.Ratelimit.RateLimitDescriptor.Entry;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;

/** Sends one request to Tollgate; {@link Limiter} is the part for a service. */
public final class Main {

  private static final String USAGE =
      "usage: tollgate-client --to HOST:PORT --domain D [--hits N] [--timeout MS] [--on-error allow|deny]"
          + " KEY=VALUE[,KEY=VALUE]";
  private static final int EXIT_ALLOWED = 0;
  private static final int EXIT_USAGE = 1;
  private static final int EXIT_DENIED = 2;

  private record Question(
      String to, String domain, List<Entry> entries, int hits, Duration timeout, OnError onError) {}

  public static void main(String[] arguments) {
    Question asked;
    try {
      asked = parse(List.of(arguments));
    } catch (IllegalArgumentException error) {
      System.err.println(error.getMessage() + "\n" + USAGE);
      System.exit(EXIT_USAGE);
      return;
    }
    Decision decision;
    try (Limiter limiter = new Limiter(asked.to, asked.timeout, asked.onError)) {
      limiter.warmUp();
      decision = limiter.ask(asked.domain, asked.entries, asked.hits);
    }
    System.out.println(line(decision));
    if (decision.noAnswer() != null) {
      System.err.println(decision.noAnswer().getDescription());
    }
    System.exit(decision.allowed() ? EXIT_ALLOWED : EXIT_DENIED);
  }

  private static String line(Decision decision) {
    String verdict = decision.allowed() ? "allowed" : "denied";
    if (decision.noAnswer() != null) {
      return verdict + " no_answer=" + decision.noAnswer().getCode();
    }
    String remaining =
        decision.remaining().isPresent() ? Long.toString(decision.remaining().getAsLong()) : "unlimited";
    // Whole seconds as in the header Retry-After, rounded up so that a retry is not too early.
    long seconds = decision.retryAfter().plusNanos(999_999_999).toSeconds();
    return verdict + " remaining=" + remaining + " retry_after=" + seconds;
  }

  private static Question parse(List<String> arguments) {
    Map<String, String> flags =
        new HashMap<>(Map.of("--hits", "1", "--timeout", "250", "--on-error", "allow", "--to", "", "--domain", ""));
    List<String> descriptors = new ArrayList<>();
    for (Iterator<String> rest = arguments.iterator(); rest.hasNext(); ) {
      String argument = rest.next();
      if (!argument.startsWith("--")) {
        descriptors.add(argument);
      } else if (flags.containsKey(argument) && rest.hasNext()) {
        flags.put(argument, rest.next());
      } else {
        throw new IllegalArgumentException(argument + " is no flag, or has no value");
      }
    }
    String to = flags.get("--to");
    String domain = flags.get("--domain");
    if (to.isEmpty() || domain.isEmpty() || descriptors.size() != 1) {
      throw new IllegalArgumentException("--to, --domain and one descriptor are required");
    }
    Duration timeout = Duration.ofMillis(wholeNumber(flags.get("--timeout")));
    return new Question(
        to, domain, entries(descriptors.get(0)), wholeNumber(flags.get("--hits")), timeout, onError(flags));
  }

  private static OnError onError(Map<String, String> flags) {
    return switch (flags.get("--on-error")) {
      case "allow" -> OnError.ALLOW;
      case "deny" -> OnError.DENY;
      default -> throw new IllegalArgumentException("--on-error is allow or deny");
    };
  }

  private static int wholeNumber(String text) {
    try {
      int number = Integer.parseInt(text);
      if (number >= 1) {
        return number;
      }
    } catch (NumberFormatException error) {
      // Reported below, as for a number that is too small.
    }
    throw new IllegalArgumentException("--hits and --timeout are whole numbers from 1");
  }

  private static List<Entry> entries(String text) {
    List<Entry> entries = new ArrayList<>();
    for (String pair : text.split(",", -1)) {
      int end = pair.indexOf('=');
      if (end < 1) {
        throw new IllegalArgumentException("'" + pair + "' is not KEY=VALUE");
      }
      entries.add(Entry.newBuilder().setKey(pair.substring(0, end)).setValue(pair.substring(end + 1)).build());
    }
    return entries;
  }
}
