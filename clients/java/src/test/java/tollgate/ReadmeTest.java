package tollgate;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.RecordComponent;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.junit.jupiter.api.Test;
import tollgate.spring.TollgateProperties;

class ReadmeTest {

  private static String text(String path) throws Exception {
    return Files.readString(Path.of(path));
  }

  private static List<String> names(Class<?> type) {
    return Arrays.stream(type.getRecordComponents()).map(RecordComponent::getName).toList();
  }

  @Test
  void readme_firstJavaBlock_hasLinesOfTheExample() throws Exception {
    String example = text("example/shop/Application.java");
    Matcher block = Pattern.compile("```java\n(.*?)```", Pattern.DOTALL).matcher(text("README.md"));

    assertTrue(block.find());
    for (String line : block.group(1).lines().map(String::strip).toList()) {
      assertTrue(example.contains(line), line);
    }
  }

  @Test
  void readme_tableOfOptions_hasEachOption() throws Exception {
    Pattern form = Pattern.compile("^\\| `(\\w+)` \\| [^|]+ \\| (.*) \\|$", Pattern.MULTILINE);
    Matcher row = form.matcher(text("README.md"));
    List<List<String>> rows = row.results().map(found -> List.of(found.group(1), found.group(2))).toList();
    List<String> properties =
        rows.stream().filter(each -> !each.get(1).contains("No property")).map(each -> each.get(0)).toList();

    assertEquals(names(ClientOptions.class), rows.stream().map(each -> each.get(0)).toList());
    assertEquals(names(TollgateProperties.class).subList(1, properties.size() + 1), properties);
  }
}
