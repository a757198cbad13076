package tollgate.servlet;

import jakarta.servlet.Filter;
import jakarta.servlet.FilterChain;
import jakarta.servlet.ServletException;
import jakarta.servlet.ServletRequest;
import jakarta.servlet.ServletResponse;
import jakarta.servlet.http.HttpServletRequest;
import jakarta.servlet.http.HttpServletResponse;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import tollgate.Checker;
import tollgate.Decision;
import tollgate.InvalidRequestException;
import tollgate.RefusalBody;
import tollgate.Request;

/**
 * Limits HTTP requests by the decisions of a Tollgate server.
 *
 * <p>A denied request gets status 429 with Retry-After if the same request passes later, and status 503 with
 * Retry-After of a second if the server gave no answer. Its body is {@link Decision#refusalBody}. Each response to a
 * request with a limit has RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset of the tightest one. Times are in whole
 * seconds. If the description is an invalid request, the status is 500.
 */
public final class RateLimitFilter implements Filter {

  private final Checker checker;
  private final Describe describe;

  /** Says what an HTTP request asks for. */
  @FunctionalInterface
  public interface Describe {
    /** Returns null if the request is not limited. */
    Request describe(HttpServletRequest request);
  }

  public RateLimitFilter(Checker checker, Describe describe) {
    this.checker = checker;
    this.describe = describe;
  }

  @Override
  public void doFilter(ServletRequest request, ServletResponse response, FilterChain chain)
      throws IOException, ServletException {
    Request limited = describe.describe((HttpServletRequest) request);
    if (limited == null || passes(limited, (HttpServletRequest) request, (HttpServletResponse) response)) {
      chain.doFilter(request, response);
    }
  }

  /** Says whether the request goes on; otherwise it has its response. */
  private boolean passes(Request limited, HttpServletRequest request, HttpServletResponse response)
      throws IOException {
    try {
      Decision decision = checker.check(limited);
      decision.limitHeaders().forEach(response::setHeader);
      if (!decision.allowed()) {
        decision
            .retryAfterSeconds()
            .ifPresent(seconds -> response.setHeader("Retry-After", Long.toString(seconds)));
        // Without `sendError`, which would dispatch the request to an error page.
        response.setStatus(decision.httpStatus());
        RefusalBody body = decision.refusalBody(request.getHeader("Accept"));
        response.setContentType(body.contentType());
        response.getOutputStream().write(body.text().getBytes(StandardCharsets.UTF_8));
        return false;
      }
      decision.awaitTurn();
      return true;
    } catch (InvalidRequestException error) {
      // To let it pass would open a way around the limit for text that is too long.
      response.sendError(HttpServletResponse.SC_INTERNAL_SERVER_ERROR);
      return false;
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
      response.sendError(HttpServletResponse.SC_SERVICE_UNAVAILABLE);
      return false;
    }
  }
}
