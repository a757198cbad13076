package tollgate.spring;

import java.time.Duration;
import org.springframework.boot.context.properties.ConfigurationProperties;
import tollgate.ClientOptions;
import tollgate.OnNoAnswer;

/**
 * The properties {@code tollgate.*}. Those without a value have the defaults of {@link ClientOptions}.
 *
 * @param target the gRPC name of the server; without it there is no client
 */
@ConfigurationProperties("tollgate")
public record TollgateProperties(
    String target,
    Duration timeout,
    OnNoAnswer onNoAnswer,
    Integer callsMax,
    Integer batchMax,
    Integer queueMax,
    Integer denyCacheKeys,
    Duration denyCacheMax,
    String adminToken) {

  /** Without the token. */
  @Override
  public String toString() {
    return "TollgateProperties[target=" + target + "]";
  }
}
