package tollgate;

/** What made a decision. */
public enum Source {
  /** The server. */
  SERVER,
  /** The deny cache: the server refused the same request before. */
  DENY_CACHE,
  /** A prepaid slice. */
  PREPAID,
  /** {@link OnNoAnswer}, because the server gave no answer. */
  DEFAULT
}
