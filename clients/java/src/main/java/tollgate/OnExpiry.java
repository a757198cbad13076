package tollgate;

/** What happens to a reservation that is neither settled nor canceled before it expires. */
public enum OnExpiry {
  /** Its hits are given back. */
  RELEASE,
  /** Its hits stay charged. */
  CHARGE
}
