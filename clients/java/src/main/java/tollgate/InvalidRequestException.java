package tollgate;

/** Says what is wrong with a request. No limit decided it. */
public final class InvalidRequestException extends RuntimeException {

  private static final long serialVersionUID = 1;

  InvalidRequestException(String message) {
    super(message);
  }
}
