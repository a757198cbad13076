package tollgate.testing;

import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import tollgate.Metrics;
import tollgate.Outcome;

/** What a client has counted. */
public final class Counts implements Metrics {

  private final Map<Outcome, Integer> outcomes = new ConcurrentHashMap<>();
  private final List<Integer> batches = new ArrayList<>();
  private final AtomicLong lost = new AtomicLong();

  @Override
  public void checked(Outcome outcome, Duration latency) {
    outcomes.merge(outcome, 1, Integer::sum);
  }

  @Override
  public synchronized void sent(int batch) {
    batches.add(batch);
  }

  @Override
  public void lost(long hits) {
    lost.addAndGet(hits);
  }

  public int of(Outcome outcome) {
    return outcomes.getOrDefault(outcome, 0);
  }

  public synchronized List<Integer> sent() {
    return List.copyOf(batches);
  }

  public long lost() {
    return lost.get();
  }
}
