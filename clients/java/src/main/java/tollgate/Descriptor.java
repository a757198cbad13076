package tollgate;

import java.util.ArrayList;
import java.util.List;

/**
 * Leads to one rule, and to one counter of this rule.
 *
 * @param entries in the order of the levels of the rules
 * @param limit replaces the limit of the rules, if it is not null
 * @param hits replaces the hits of the request, if it is not null; 0 charges nothing
 * @param onExpiry replaces that of the terms of a reservation, if it is not null; other calls ignore it
 */
public record Descriptor(List<Entry> entries, Limit limit, Long hits, OnExpiry onExpiry) {

  public Descriptor {
    entries = List.copyOf(entries);
  }

  /** Returns a descriptor with one entry. */
  public static Descriptor of(String key, String value) {
    return new Descriptor(List.of(new Entry(key, value)), null, null, null);
  }

  /** Returns the descriptor with one more entry. */
  public Descriptor and(String key, String value) {
    List<Entry> more = new ArrayList<>(entries);
    more.add(new Entry(key, value));
    return new Descriptor(more, limit, hits, onExpiry);
  }

  /** Returns the descriptor with this limit instead of that of the rules. */
  public Descriptor withLimit(Limit limit) {
    return new Descriptor(entries, limit, hits, onExpiry);
  }

  /** Returns the descriptor with these hits instead of those of the request. */
  public Descriptor withHits(long hits) {
    return new Descriptor(entries, limit, hits, onExpiry);
  }

  /** Returns the descriptor with this end of a reservation that expires, instead of that of the terms. */
  public Descriptor withOnExpiry(OnExpiry onExpiry) {
    return new Descriptor(entries, limit, hits, onExpiry);
  }
}
