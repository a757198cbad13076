package llm;

import java.util.Iterator;
import java.util.List;
import java.util.stream.IntStream;

/** A small fake model: it repeats a sentence, and stops at the end of a sentence or at the most tokens. */
final class Model {

  private static final List<String> SENTENCE = List.of("Limits", " are", " kept", " exactly", ".", "\n");

  private Model() {}

  /** The tokens of an answer, as they come. */
  static Iterator<String> answer(int sentences, int maxTokens) {
    int tokens = Math.min(Math.multiplyExact(sentences, SENTENCE.size()), maxTokens);
    return IntStream.range(0, tokens).mapToObj(i -> SENTENCE.get(i % SENTENCE.size())).iterator();
  }
}
