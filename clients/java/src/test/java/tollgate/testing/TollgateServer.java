package tollgate.testing;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.function.BooleanSupplier;
import tools.jackson.databind.json.JsonMapper;

/** A real server: the program that the variable TOLLGATE names. */
public final class TollgateServer implements AutoCloseable {

  /** Long, so that a busy machine does not look like an outage. */
  public static final Duration PATIENCE = Duration.ofSeconds(20);

  private final Process process;
  private final String address;

  /** Starts a server with these rules, and waits until it is ready. */
  public TollgateServer(String rules, String... flags) {
    List<String> command = new ArrayList<>(List.of("python3", "../test_server.py", rules));
    command.addAll(List.of(flags));
    try {
      process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
      String addresses = Objects.requireNonNull(process.inputReader().readLine(), "the server did not start");
      address = JsonMapper.shared().readTree(addresses).get("grpc").asString();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** The address of the gRPC listener. */
  public String address() {
    return address;
  }

  /** Ends the server at once. */
  @Override
  public void close() {
    try {
      process.getOutputStream().close();
      process.waitFor();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }

  /** Waits until the condition holds. */
  public static void eventually(String what, BooleanSupplier condition) {
    long begin = System.nanoTime();
    while (!condition.getAsBoolean()) {
      if (System.nanoTime() - begin > PATIENCE.toNanos()) {
        throw new AssertionError("not within " + PATIENCE + ": " + what);
      }
      try {
        Thread.sleep(1);
      } catch (InterruptedException error) {
        throw new AssertionError(what, error);
      }
    }
  }
}
