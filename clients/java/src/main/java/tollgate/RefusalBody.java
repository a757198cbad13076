package tollgate;

/**
 * The body of the response to a denied request.
 *
 * @param contentType the value of the header Content-Type
 * @param text the body, which is UTF-8
 */
public record RefusalBody(String contentType, String text) {

  static final String PROBLEM = "application/problem+json";

  /** A problem of RFC 9457. */
  static RefusalBody problem(int status, String detail) {
    String title = status == 503 ? "Service Unavailable" : "Too Many Requests";
    String json = "{\"title\":\"%s\",\"status\":%d,\"detail\":\"%s\"}";
    return new RefusalBody(PROBLEM, String.format(json, title, status, escaped(detail)));
  }

  private static String escaped(String text) {
    StringBuilder json = new StringBuilder();
    for (char character : text.toCharArray()) {
      if (character < ' ') {
        json.append(String.format("\\u%04x", (int) character));
      } else {
        json.append(character == '"' || character == '\\' ? "\\" : "").append(character);
      }
    }
    return json.toString();
  }
}
