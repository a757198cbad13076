package tollgate;

import java.util.function.Function;

/** The values that an option may have. */
record Range<T extends Comparable<T>>(T least, T most) {

  static <T extends Comparable<T>> Range<T> of(T least, T most) {
    return new Range<>(least, most);
  }

  /** Returns the value if it is in the range; otherwise it throws an error that names the option. */
  T check(String option, T value) {
    return check(option, value, IllegalArgumentException::new);
  }

  T check(String option, T value, Function<String, RuntimeException> error) {
    if (value.compareTo(least) < 0 || value.compareTo(most) > 0) {
      throw error.apply(option + " is not from " + least + " to " + most + ": " + value);
    }
    return value;
  }
}
