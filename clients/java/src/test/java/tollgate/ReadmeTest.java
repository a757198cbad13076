package tollgate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.BufferedReader;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.lang.reflect.RecordComponent;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import tollgate.spring.TollgateProperties;
import tollgate.testing.TollgateServer;

class ReadmeTest {

  private static final String RULES =
      """
      domain: edge
      descriptors: [{key: remote_address, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}}]
      """;

  private static String text(String path) throws Exception {
    return Files.readString(Path.of(path));
  }

  private static List<String> blocks() throws Exception {
    Matcher block = Pattern.compile("```java\n(.*?)```", Pattern.DOTALL).matcher(text("README.md"));
    return block.results().map(found -> found.group(1)).toList();
  }

  @Test
  void readme_firstProgram_printsTheDecision(@TempDir Path folder) throws Exception {
    String program = blocks().get(0);
    assertTrue(program.contains("\"127.0.0.1:8081\""), program);
    try (TollgateServer server = new TollgateServer(RULES)) {
      // With a timeout that suits a busy machine.
      String patient =
          program
              .replace("127.0.0.1:8081", server.address())
              .replace("ClientOptions()", "ClientOptions().timeout(java.time.Duration.ofSeconds(20))");
      Path source = Files.writeString(folder.resolve("Ask.java"), patient);

      assertEquals("allowed: true, refused for PT0S\nno answer: null", run(source));
      String refused = run(source);

      assertTrue(refused.matches("allowed: false, refused for PT\\d+M.*\nno answer: null"), refused);
    }
  }

  private static String run(Path source) throws Exception {
    String java = ProcessHandle.current().info().command().orElseThrow();
    List<String> command = List.of(java, "-cp", System.getProperty("java.class.path"), source.toString());
    Process process = new ProcessBuilder(command).redirectError(ProcessBuilder.Redirect.INHERIT).start();
    try (BufferedReader output = process.inputReader()) {
      return String.join("\n", output.lines().toList());
    }
  }

  @Test
  void readme_beanOfSpring_isThatOfTheExample() throws Exception {
    assertTrue(text("example/shop/Application.java").contains(blocks().get(1).indent(2)));
  }

  @Test
  void readme_tableOfOptions_hasEachOption() throws Exception {
    Pattern form = Pattern.compile("^\\| `(\\w+)` \\| [^|]+ \\| (.*) \\|$", Pattern.MULTILINE);
    Matcher row = form.matcher(text("README.md"));
    List<List<String>> rows = row.results().map(found -> List.of(found.group(1), found.group(2))).toList();
    List<String> properties =
        rows.stream().filter(each -> !each.get(1).contains("No property")).map(each -> each.get(0)).toList();

    List<String> options =
        Arrays.stream(ClientOptions.class.getDeclaredFields())
            .filter(field -> !Modifier.isStatic(field.getModifiers()))
            .map(Field::getName)
            .toList();
    assertEquals(options, rows.stream().map(each -> each.get(0)).toList());
    List<String> components =
        Arrays.stream(TollgateProperties.class.getRecordComponents()).map(RecordComponent::getName).toList();
    assertEquals(components.subList(1, components.size()), properties);
  }
}
