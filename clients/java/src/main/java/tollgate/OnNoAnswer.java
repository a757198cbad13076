package tollgate;

/** The decision on a request if the server gives no answer. */
public enum OnNoAnswer {
  /** For protection against overload: an outage of the limiter must not be an outage of the service. */
  ALLOW,
  /** For limits that protect money, logins or secrets. */
  DENY
}
