package tollgate;

import java.util.Objects;

/**
 * A limit that is sent instead of the one in the rules.
 *
 * @param requestsPerUnit 0 to 4,294,967,295
 */
public record Limit(long requestsPerUnit, Unit unit) {

  public Limit {
    Objects.requireNonNull(unit, "unit");
  }
}
