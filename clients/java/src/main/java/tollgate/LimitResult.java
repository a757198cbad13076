package tollgate;

import tollgate.v1.OwnLimit;

/**
 * What has become of the limit of its own of one key.
 *
 * @param limit the one that applies now; null if the numbers of the rule do, or if nothing is known
 * @param rule the name of the rule, or its path
 * @param error says why nothing was read or changed; otherwise null
 */
public record LimitResult(OwnLimit limit, String rule, LimitException error) {}
