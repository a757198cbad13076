package tollgate;

import java.time.Duration;

/** Receives what the client counts. Its methods are called by many threads at once; they must not block or throw. */
public interface Metrics {

  /** Called once for each check, with the time that it took. */
  default void checked(Outcome outcome, Duration latency) {}

  /** Called for each call to the server with checks, with the number of checks in it. */
  default void sent(int batch) {}

  /**
   * Called if no settlement of a prepaid slice had an answer, with the hits of the slice that were not spent. The whole
   * slice stays charged.
   */
  default void lost(long hits) {}
}
