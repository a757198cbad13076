package llm;

import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.io.OutputStream;
import java.lang.System.Logger.Level;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Iterator;
import java.util.Map;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.http.ResponseEntity;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RequestHeader;
import org.springframework.web.bind.annotation.RequestParam;
import org.springframework.web.bind.annotation.RestController;
import org.springframework.web.servlet.mvc.method.annotation.StreamingResponseBody;
import tollgate.Decision;
import tollgate.Descriptor;
import tollgate.NoAnswerException;
import tollgate.OnExpiry;
import tollgate.Request;
import tollgate.Reservation;
import tollgate.Terms;
import tollgate.TollgateClient;

/**
 * An HTTP server that limits the requests and the tokens of each user of a language model: GET /chat, which streams the
 * answer. The most tokens that the answer may have are reserved, and settled at the tokens that were sent.
 */
@SpringBootApplication
@RestController
public class Application {

  private static final System.Logger LOG = System.getLogger(Application.class.getName());
  // Longer than any answer takes. If this process ends, the tokens that it held stay charged.
  private static final Terms TERMS = new Terms(Duration.ofMinutes(5), OnExpiry.CHARGE);

  private final TollgateClient tollgate;

  Application(TollgateClient tollgate) {
    this.tollgate = tollgate;
  }

  public static void main(String[] arguments) {
    SpringApplication application = new SpringApplication(Application.class);
    // Tokens cost money.
    application.setDefaultProperties(Map.of("tollgate.on-no-answer", "deny"));
    application.run(arguments);
  }

  @GetMapping("/chat")
  ResponseEntity<StreamingResponseBody> chat(
      @RequestHeader("user") String user,
      @RequestParam(name = "sentences", defaultValue = "3") int sentences,
      @RequestParam(name = "max_tokens", defaultValue = "500") int maxTokens,
      HttpServletResponse response)
      throws InterruptedException {
    if (sentences < 1 || sentences > 1_000_000 || maxTokens < 1) {
      return ResponseEntity.badRequest().build();
    }
    Descriptor requests = Descriptor.of("requests", user).withHits(1);
    Descriptor tokens = Descriptor.of("tokens", user);
    Reservation reservation = tollgate.reserve(Request.of("models", requests, tokens).withHits(maxTokens), TERMS);
    Decision decision = reservation.decision();
    decision.limitHeaders().forEach(response::setHeader);
    decision.retryAfterSeconds().ifPresent(wait -> response.setHeader("Retry-After", Long.toString(wait)));
    if (!decision.allowed()) {
      giveBack(reservation);
      return ResponseEntity.status(decision.httpStatus()).build();
    }
    Iterator<String> answer = Model.answer(sentences, maxTokens);
    return ResponseEntity.ok(output -> stream(answer, output, reservation));
  }

  /** Holds hits only if the answer was lost, and the default has decided. */
  private void giveBack(Reservation reservation) throws InterruptedException {
    try {
      tollgate.cancel(reservation);
    } catch (NoAnswerException error) {
      LOG.log(Level.WARNING, "the reservation may stay charged", error);
    }
  }

  private void stream(Iterator<String> answer, OutputStream output, Reservation reservation) throws IOException {
    int sent = 0;
    try {
      while (answer.hasNext()) {
        String token = answer.next();
        sent++;
        output.write(token.getBytes(StandardCharsets.UTF_8));
        // Fails if the caller has gone away.
        output.flush();
      }
    } finally {
      // One request, and the tokens that the model has made.
      tollgate
          .settleAsync(reservation, sent)
          .exceptionally(
              error -> {
                LOG.log(Level.WARNING, "the reservation stays charged as a whole", error);
                return null;
              });
    }
  }
}
