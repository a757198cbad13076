package tollgate;

import io.grpc.Status;

/** Says why the limit of its own of one key was not read or changed. */
public final class LimitException extends RuntimeException {

  private static final long serialVersionUID = 1;

  private final Status.Code code;
  private final String reason;

  LimitException(Status.Code code, String reason, String message) {
    super(message);
    this.code = code;
    this.reason = reason;
  }

  public Status.Code code() {
    return code;
  }

  /** A name, such as OUT_OF_BOUNDS or OTHER_VERSION. */
  public String reason() {
    return reason;
  }

  @Override
  public String toString() {
    return reason + ": " + getMessage();
  }
}
