package tollgate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;
import static tollgate.TollgateClientTest.RULES;
import static tollgate.testing.TollgateServer.PATIENCE;

import io.grpc.Context;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.time.Duration;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import tollgate.testing.TollgateServer;

/** Without a server, and with a silent one. */
class ConnectionTest {

  private static final Request ANN = Request.of("edge", Descriptor.of("user", "ann"));
  private static final Duration SHORT = Duration.ofMillis(50);

  private static ServerSocket listener() throws Exception {
    return new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
  }

  private static String addressOf(ServerSocket listener) {
    return "127.0.0.1:" + listener.getLocalPort();
  }

  private static TollgateClient client(String target, ClientOptions options) {
    return new TollgateClient(target, options);
  }

  @Test
  void deadlineOfCaller_beforeTimeout_getsTheDefault() throws Exception {
    ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor();
    try (ServerSocket silent = listener();
        TollgateClient client = client(addressOf(silent), new ClientOptions().timeout(PATIENCE))) {
      Context caller = Context.current().withDeadlineAfter(SHORT.toMillis(), TimeUnit.MILLISECONDS, timer);

      Decision decision = caller.call(() -> client.check(ANN));

      assertEquals("no answer in time", decision.noAnswer().getMessage());
    } finally {
      timer.shutdownNow();
    }
  }

  @Test
  void client_duringAnOutage_reconnectsEachSecond() throws Exception {
    try (ServerSocket refusing = listener();
        TollgateClient client = client(addressOf(refusing), new ClientOptions().timeout(PATIENCE))) {
      CompletableFuture<Decision> check = client.checkAsync(ANN);
      long begin = System.nanoTime();
      for (int attempt = 0; attempt < 6; attempt++) {
        refusing.accept().close();
      }
      Duration elapsed = Duration.ofNanos(System.nanoTime() - begin);

      // By default gRPC makes the sixth attempt after 16 seconds, 20 % more or less.
      assertTrue(elapsed.compareTo(Duration.ofSeconds(10)) < 0, elapsed::toString);
      assertNotNull(check.join().noAnswer());
    }
  }

  @Test
  void connection_withoutCalls_isPinged() throws Exception {
    try (TollgateServer server = new TollgateServer(RULES);
        ServerSocket relay = listener();
        TollgateClient client = client(addressOf(relay), new ClientOptions().timeout(PATIENCE))) {
      CompletableFuture<Decision> check = client.checkAsync(ANN);
      URI uri = URI.create("tcp://" + server.address());
      try (Socket near = relay.accept();
          Socket far = new Socket(uri.getHost(), uri.getPort())) {
        CompletableFuture.runAsync(() -> transfer(far, near));
        near.setSoTimeout((int) PATIENCE.toMillis());
        byte[] bytes = new byte[1 << 16];
        Duration silence = Duration.ZERO;
        // A connection without pings is silent for longer than the timeout of the socket.
        while (!check.isDone() || silence.toSeconds() < 5) {
          long begin = System.nanoTime();
          int count = near.getInputStream().read(bytes);
          silence = Duration.ofNanos(System.nanoTime() - begin);
          assertTrue(count > 0, "the connection stays open");
          far.getOutputStream().write(bytes, 0, count);
        }
      }
      assertNull(check.join().noAnswer());
    }
  }

  private static void transfer(Socket from, Socket to) {
    try {
      from.getInputStream().transferTo(to.getOutputStream());
    } catch (IOException closed) {
      // The test is over.
    }
  }
}
