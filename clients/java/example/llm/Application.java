package llm;

import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.io.OutputStream;
import java.lang.System.Logger.Level;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RequestHeader;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;
import tollgate.Decision;
import tollgate.Descriptor;
import tollgate.NoAnswerException;
import tollgate.OnExpiry;
import tollgate.RefusalBody;
import tollgate.Request;
import tollgate.Reservation;
import tollgate.Terms;
import tollgate.TollgateClient;

/**
 * An HTTP server that keeps four limits of each user of a language model: GET /chat, which streams the answer. A
 * reservation holds one request, the most tokens that the answer may have, and a place in flight. Its settlement frees
 * the place, and charges the tokens that were sent.
 */
@SpringBootApplication
@RestController
public class Application {

  private static final System.Logger LOG = System.getLogger(Application.class.getName());
  private static final List<String> SENTENCE = List.of("Limits", " are", " kept", " exactly", ".", "\n");
  // Longer than any answer takes. If this process ends before, the place is free again, and the rest stays charged.
  private static final Terms TERMS = new Terms(Duration.ofMinutes(5), OnExpiry.CHARGE);
  // The index of the descriptor of calls in flight.
  private static final int IN_FLIGHT = 3;

  private final TollgateClient tollgate;
  // The time between two tokens.
  private final Duration pace;

  Application(TollgateClient tollgate, @Value("${model.pace:50ms}") Duration pace) {
    this.tollgate = tollgate;
    this.pace = pace;
  }

  public static void main(String[] arguments) {
    SpringApplication application = new SpringApplication(Application.class);
    // Tokens cost money.
    application.setDefaultProperties(Map.of("tollgate.on-no-answer", "deny"));
    application.run(arguments);
  }

  @GetMapping("/chat")
  void chat(
      @RequestHeader("user") String user,
      @RequestParam(name = "max_tokens", defaultValue = "500") int maxTokens,
      @RequestHeader(name = "Accept", required = false) String accept,
      HttpServletResponse response)
      throws IOException, InterruptedException {
    if (maxTokens < 1) {
      response.setStatus(HttpServletResponse.SC_BAD_REQUEST);
      return;
    }
    Reservation reservation = tollgate.reserve(describe(user, maxTokens), TERMS);
    Decision decision = reservation.decision();
    decision.limitHeaders().forEach(response::setHeader);
    if (!decision.allowed()) {
      giveBack(reservation);
      decision.retryAfterSeconds().ifPresent(wait -> response.setHeader("Retry-After", Long.toString(wait)));
      response.setStatus(decision.httpStatus());
      RefusalBody body = decision.refusalBody(accept);
      response.setContentType(body.contentType());
      response.getOutputStream().print(body.text());
      return;
    }
    stream(maxTokens, response.getOutputStream(), reservation);
  }

  private static Request describe(String user, int maxTokens) {
    return Request.of(
            "models",
            Descriptor.of("requests", user).withHits(1),
            Descriptor.of("tokens", user),
            Descriptor.of("tokens_of_month", user),
            Descriptor.of("in_flight", user).withHits(1).withOnExpiry(OnExpiry.RELEASE))
        .withHits(maxTokens);
  }

  /** Holds hits only if the answer was lost, and the default has decided. */
  private void giveBack(Reservation reservation) throws InterruptedException {
    try {
      tollgate.cancel(reservation);
    } catch (NoAnswerException error) {
      LOG.log(Level.WARNING, "the reservation may be held until it expires", error);
    }
  }

  /** Streams the tokens of a fake model. */
  private void stream(int maxTokens, OutputStream output, Reservation reservation)
      throws IOException, InterruptedException {
    int sent = 0;
    try {
      while (sent < Math.min(18, maxTokens)) {
        output.write(SENTENCE.get(sent % SENTENCE.size()).getBytes(StandardCharsets.UTF_8));
        sent++;
        // Fails if the caller has gone away.
        output.flush();
        Thread.sleep(pace.toMillis());
      }
    } finally {
      // One request as reserved, the tokens that the model has made, and no place.
      tollgate
          .settleAsync(reservation, sent, Map.of(IN_FLIGHT, 0L))
          .exceptionally(
              error -> {
                LOG.log(Level.WARNING, "the reservation is held until it expires", error);
                return null;
              });
    }
  }
}
