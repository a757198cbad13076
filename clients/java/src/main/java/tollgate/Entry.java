package tollgate;

import java.util.Objects;

/** One part of a descriptor. It matches one level of the rules. */
public record Entry(String key, String value) {

  public Entry {
    Objects.requireNonNull(key, "key");
    Objects.requireNonNull(value, "value");
  }
}
