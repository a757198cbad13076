package shop;

import java.util.Objects;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.web.bind.annotation.GetMapping;
import org.springframework.web.bind.annotation.RestController;
import tollgate.Descriptor;
import tollgate.Request;
import tollgate.servlet.RateLimitFilter;

/** An HTTP server that asks Tollgate for each request: GET /hello, limited by the header "user". */
@SpringBootApplication
@RestController
public class Application {

  public static void main(String[] arguments) {
    SpringApplication.run(Application.class, arguments);
  }

  @GetMapping("/hello")
  String hello() {
    return "hello";
  }

  /** Limits each user; requests without a user share one limit. */
  @Bean
  RateLimitFilter.Describe describe() {
    return request -> {
      // A real service takes the user from a verified token: a client that chooses its name chooses its budget.
      String user = Objects.requireNonNullElse(request.getHeader("user"), "anonymous");
      return Request.of("edge", Descriptor.of("user", user));
    };
  }
}
