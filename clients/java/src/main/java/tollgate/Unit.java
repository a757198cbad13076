package tollgate;

/** The window of a limit. */
public enum Unit {
  /** Valid in answers only: the window is none of the others. */
  UNKNOWN,
  SECOND,
  MINUTE,
  HOUR,
  DAY,
  WEEK,
  MONTH,
  YEAR
}
