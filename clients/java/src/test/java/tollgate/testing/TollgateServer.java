package tollgate.testing;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.BooleanSupplier;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.time.Duration;

/** A real server: the program that the variable TOLLGATE names. */
public final class TollgateServer implements AutoCloseable {

  /** Long, so that a busy machine does not look like an outage. */
  public static final Duration PATIENCE = Duration.ofSeconds(20);

  private static final String FREE = "127.0.0.1:0";
  private static final Pattern NAME = Pattern.compile("\"listener\":\"([^\"]+)\"");
  private static final Pattern ADDRESS = Pattern.compile("\"address\":\"([^\"]+)\"");

  private final Process process;
  private final Map<String, String> listeners = new ConcurrentHashMap<>();
  private final StringBuffer log = new StringBuffer();

  /** Starts a server with these rules, and waits until it is ready. */
  public TollgateServer(String rules, String... flags) {
    String program = System.getenv("TOLLGATE");
    if (program == null) {
      throw new IllegalStateException("set the variable TOLLGATE to the path of the program tollgate");
    }
    try {
      Path folder = Files.createTempDirectory("tollgate");
      Path path = Files.writeString(folder.resolve("rules.yaml"), rules);
      List<String> command = new ArrayList<>(List.of(program, "serve", "--rules", path.toString()));
      command.addAll(List.of("--grpc-listen", FREE, "--http-listen", FREE, "--admin-listen", FREE));
      command.addAll(List.of("--metrics-listen", FREE, "--log-format", "json", "--drain-delay", "0s"));
      command.addAll(List.of(flags));
      ProcessBuilder builder = new ProcessBuilder(command).redirectErrorStream(true);
      builder.environment().keySet().removeIf(name -> name.startsWith("TOLLGATE"));
      process = builder.start();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    Thread reader = new Thread(this::readLog, "log of the server");
    reader.setDaemon(true);
    reader.start();
    try {
      eventually("the server is ready", this::isReady);
    } catch (AssertionError error) {
      close();
      throw new AssertionError(error.getMessage() + ":\n" + log, error);
    }
  }

  /** The address of the gRPC listener. */
  public String address() {
    return listeners.get("grpc");
  }

  /** Ends the server at once. */
  @Override
  public void close() {
    process.destroyForcibly();
    try {
      process.waitFor();
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

  private void readLog() {
    try (BufferedReader lines = process.inputReader()) {
      for (String line = lines.readLine(); line != null; line = lines.readLine()) {
        log.append(line).append('\n');
        Matcher name = NAME.matcher(line);
        Matcher address = ADDRESS.matcher(line);
        if (line.contains("\"message\":\"listening\"") && name.find() && address.find()) {
          listeners.put(name.group(1), address.group(1));
        }
      }
    } catch (IOException error) {
      log.append(error);
    }
  }

  private boolean isReady() {
    if (!process.isAlive()) {
      throw new AssertionError("the server exited");
    }
    if (listeners.size() < 4) {
      return false;
    }
    HttpRequest probe = HttpRequest.newBuilder(URI.create("http://" + listeners.get("http") + "/readyz")).build();
    try {
      return HttpClient.newHttpClient().send(probe, HttpResponse.BodyHandlers.discarding()).statusCode() == 200;
    } catch (IOException error) {
      return false;
    } catch (InterruptedException error) {
      throw new AssertionError(error);
    }
  }
}
