package tollgate;

import java.time.Duration;
import java.util.List;

/**
 * How a reservation has ended.
 *
 * @param limits those that apply, in the order of the descriptors; none if nothing was held
 * @param unknown whether the outcome of a limit is {@link Outcome#UNKNOWN}
 */
public record Settlement(List<SettledLimit> limits, boolean unknown) {

  public Settlement {
    limits = List.copyOf(limits);
  }

  /**
   * One limit of a reservation that has ended.
   *
   * @param descriptor the index of the descriptor in the request
   * @param rule the name of the rule, or its path; empty for a limit that the caller sent
   * @param reserved hits that the reservation held; 0 if the outcome is RELEASED or UNKNOWN
   * @param notCharged of the hits that were used, those that were not charged because the limit does not go as far
   * @param remaining hits that are left
   * @param resetAfter the time until the limit is unused
   */
  public record SettledLimit(
      int descriptor,
      String rule,
      Outcome outcome,
      long reserved,
      long notCharged,
      long remaining,
      Duration resetAfter) {}

  /** What was known of a reservation. */
  public enum Outcome {
    /** It was open. */
    OPEN,
    /** It had expired and stayed charged. The charge was adjusted. */
    CHARGED,
    /** It had expired and was released. All hits that were used were charged now. */
    RELEASED,
    /** Nothing. All hits that were used were charged now. */
    UNKNOWN
  }
}
