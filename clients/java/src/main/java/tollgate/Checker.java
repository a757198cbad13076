package tollgate;

import java.util.concurrent.CancellationException;

/** Decides the requests of a service: a {@link TollgateClient}, {@link PrepaidSlices}, or a class of your own. */
@FunctionalInterface
public interface Checker {

  /**
   * Charges the hits of a request if it is allowed.
   *
   * @throws InvalidRequestException if the request is invalid
   * @throws CancellationException if the caller cancels its context
   * @throws InterruptedException if the thread is interrupted; a check that was sent may be charged
   */
  Decision check(Request request) throws InterruptedException;
}
