package tollgate;

import io.grpc.Status;

/** The server gave no answer to a call that has no default decision. It may have done what it was asked. */
public final class NoAnswerException extends RuntimeException {

  private static final long serialVersionUID = 1;

  private final transient Status status;

  NoAnswerException(Status status) {
    super(status.toString());
    this.status = status;
  }

  /** Why there is no answer. */
  public Status status() {
    return status;
  }
}
