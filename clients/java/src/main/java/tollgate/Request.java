package tollgate;

import java.util.List;
import java.util.Objects;

/**
 * Names what is limited. Its descriptors are decided together: it is denied if one of them is over its limit.
 *
 * @param domain the set of rules that applies
 * @param descriptors at least one
 * @param hits those of each descriptor without hits of its own; 0 means 1
 * @param requestId makes a check or a refund count once: a repeated one of the same descriptors with this id is
 *     answered as the first one, for {@code api.request_id_window} of the server. At most 63 bytes, or null. Other calls ignore
 *     it.
 */
public record Request(String domain, List<Descriptor> descriptors, long hits, String requestId) {

  public Request {
    Objects.requireNonNull(domain, "domain");
    descriptors = List.copyOf(descriptors);
  }

  /** Returns a request of one hit. */
  public static Request of(String domain, Descriptor... descriptors) {
    return new Request(domain, List.of(descriptors), 1, null);
  }

  /** Returns the request with these hits. */
  public Request withHits(long hits) {
    return new Request(domain, descriptors, hits, requestId);
  }

  /** Returns the request with this id. */
  public Request withRequestId(String requestId) {
    return new Request(domain, descriptors, hits, requestId);
  }
}
