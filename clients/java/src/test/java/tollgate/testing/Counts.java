package tollgate.testing;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import tollgate.Metrics;
import tollgate.Outcome;

/** What a client has counted. */
public final class Counts implements Metrics {

  private final Map<String, Integer> outcomes = new TreeMap<>();
  private final List<Integer> batches = new ArrayList<>();
  private long lost;

  @Override
  public synchronized void checked(Outcome outcome, Duration latency) {
    outcomes.merge(outcome.toString(), 1, Integer::sum);
  }

  @Override
  public synchronized void sent(int batch) {
    batches.add(batch);
  }

  @Override
  public synchronized void lost(long hits) {
    lost += hits;
  }

  public synchronized Map<String, Integer> outcomes() {
    return Map.copyOf(outcomes);
  }

  public synchronized List<Integer> sent() {
    return List.copyOf(batches);
  }

  public synchronized long lost() {
    return lost;
  }
}
