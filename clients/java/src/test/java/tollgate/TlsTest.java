package tollgate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static tollgate.TollgateClientTest.RULES;
import static tollgate.testing.TollgateServer.PATIENCE;

import io.grpc.ChannelCredentials;
import io.grpc.InsecureChannelCredentials;
import io.grpc.TlsChannelCredentials;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.KeyStore;
import java.util.Base64;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import tollgate.testing.TollgateServer;

class TlsTest {

  private static final char[] PASSWORD = "unused".toCharArray();

  /** A self-signed certificate for the loopback, and its key. */
  private record Certificate(Path certificate, Path key) {

    static Certificate in(Path folder, String name) throws Exception {
      Path store = folder.resolve(name + ".p12");
      Path keytool = Path.of(System.getProperty("java.home"), "bin", "keytool");
      List<String> command =
          List.of(
              keytool.toString(), "-genkeypair", "-keystore", store.toString(), "-storepass", new String(PASSWORD),
              "-alias", name, "-dname", "CN=" + name, "-keyalg", "EC", "-ext", "san=ip:127.0.0.1", "-validity", "1");
      assertEquals(0, new ProcessBuilder(command).inheritIO().start().waitFor());
      KeyStore loaded = KeyStore.getInstance("PKCS12");
      try (InputStream data = Files.newInputStream(store)) {
        loaded.load(data, PASSWORD);
      }
      return new Certificate(
          pem(folder.resolve(name + ".crt"), "CERTIFICATE", loaded.getCertificate(name).getEncoded()),
          pem(folder.resolve(name + ".key"), "PRIVATE KEY", loaded.getKey(name, PASSWORD).getEncoded()));
    }

    private static Path pem(Path path, String kind, byte[] der) throws Exception {
      String text = Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(der);
      return Files.writeString(path, "-----BEGIN " + kind + "-----\n" + text + "\n-----END " + kind + "-----\n");
    }
  }

  private static Decision check(TollgateServer server, ChannelCredentials credentials) throws Exception {
    ClientOptions options = new ClientOptions().timeout(PATIENCE).credentials(credentials);
    try (TollgateClient client = new TollgateClient(server.address(), options)) {
      return client.check(Request.of("edge", Descriptor.of("user", "ann")));
    }
  }

  @Test
  void check_overTls_trustsTheGivenAuthorityOnly(@TempDir Path folder) throws Exception {
    Certificate ours = Certificate.in(folder, "ours");
    Certificate other = Certificate.in(folder, "other");
    String[] flags = {"--grpc-tls-cert", ours.certificate().toString(), "--grpc-tls-key", ours.key().toString()};
    try (TollgateServer server = new TollgateServer(RULES, flags)) {
      ChannelCredentials trusting =
          TlsChannelCredentials.newBuilder().trustManager(ours.certificate().toFile()).build();
      ChannelCredentials trustingAnother =
          TlsChannelCredentials.newBuilder().trustManager(other.certificate().toFile()).build();

      assertNull(check(server, trusting).noAnswer());
      assertNotNull(check(server, trustingAnother).noAnswer());
      assertNotNull(check(server, InsecureChannelCredentials.create()).noAnswer());
    }
  }
}
