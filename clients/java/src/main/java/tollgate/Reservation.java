package tollgate;

import java.util.Objects;

/**
 * Hits that are held until it is known how many were used.
 *
 * @param request what was reserved
 * @param decision whether the request may go on; the default without an answer
 * @param id names the reservation for {@link TollgateClient#settle(Reservation, long)}; empty if nothing is held. Without an answer, the
 *     server may hold the hits or not, and the id is that under which it may.
 * @param ended whether a reservation of this id was made before and is not open any more; then nothing is held
 */
public record Reservation(Request request, Decision decision, String id, boolean ended) {

  public Reservation {
    Objects.requireNonNull(request, "request");
    Objects.requireNonNull(decision, "decision");
    Objects.requireNonNull(id, "id");
  }
}
