package tollgate;

import io.grpc.Status;

/** The server gave no answer. It may have done what it was asked. */
public final class NoAnswerException extends RuntimeException {

  private static final long serialVersionUID = 1;

  private final Status.Code code;

  NoAnswerException(Status.Code code, String message) {
    super(message);
    this.code = code;
  }

  /** Why there is no answer. */
  public Status.Code code() {
    return code;
  }

  @Override
  public String toString() {
    return "no answer: " + code + ": " + getMessage();
  }
}
