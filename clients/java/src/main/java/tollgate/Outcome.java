package tollgate;

import java.util.Locale;

/** How a check ended. */
public enum Outcome {
  /** Allowed by the server. */
  ALLOWED,
  /** Denied by the server. */
  DENIED,
  /** Denied by the deny cache. */
  DENIED_LOCALLY,
  /** Allowed from a prepaid slice. */
  PREPAID,
  /** The server did not answer in time or at all, and the default decided. */
  NO_ANSWER,
  /** Too many checks waited for a call, and the default decided. */
  QUEUE_FULL,
  /** The request is invalid, or the caller canceled it. */
  FAILED;

  /** The name of the outcome, as the value of a label. */
  @Override
  public String toString() {
    return name().toLowerCase(Locale.ROOT);
  }
}
