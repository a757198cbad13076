package tollgate;

import com.google.protobuf.Duration;
import com.google.protobuf.Message;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.nio.ByteBuffer;
import java.nio.charset.CharsetEncoder;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.List;
import java.util.Map;
import tollgate.v1.Answer;
import tollgate.v1.CancelRequest;
import tollgate.v1.ListLimitsRequest;
import tollgate.v1.ReserveRequest;
import tollgate.v1.SettleRequest;
import tollgate.v1.SettledLimit;

/** Translates between the types of this package and the messages of the API. */
final class Codec {

  // A message has at most 4 MiB, of which the request takes all but its tag and length.
  private static final int REQUEST_BYTES_MAX = (4 << 20) - 16;
  private static final long UINT32_MAX = 0xFFFF_FFFFL;

  private Codec() {}

  /** The message of a check or a refund. */
  static tollgate.v1.Request countedOf(Request request) {
    tollgate.v1.Request message = messageOf(request);
    if (request.requestId() == null) {
      return message;
    }
    return sized(message.toBuilder().setRequestId(unicode(request.requestId(), "the request id")).build());
  }

  /**
   * The message without the request id. Finds text that is not Unicode, of which the generated code would send other
   * text.
   */
  static tollgate.v1.Request messageOf(Request request) {
    return sized(
        tollgate.v1.Request.newBuilder()
            .setDomain(unicode(request.domain(), "the domain"))
            .setHits(notNegative(request.hits(), "hits"))
            .addAllDescriptors(request.descriptors().stream().map(Codec::descriptorOf).toList())
            .build());
  }

  /** Finds a message that is larger than it may be, which the server would refuse as it refuses an overload. */
  static <M extends Message> M sized(M message) {
    int size = message.getSerializedSize();
    if (size > REQUEST_BYTES_MAX) {
      throw new InvalidRequestException("the request has " + size + " bytes, of at most " + REQUEST_BYTES_MAX);
    }
    return message;
  }

  private static tollgate.v1.Descriptor descriptorOf(Descriptor descriptor) {
    tollgate.v1.Descriptor.Builder message = tollgate.v1.Descriptor.newBuilder();
    descriptor.entries().forEach(entry -> message.addEntries(entryOf(entry)));
    if (descriptor.limit() != null) {
      message.setLimit(limitOf(descriptor.limit()));
    }
    if (descriptor.hits() != null) {
      message.setHits(notNegative(descriptor.hits(), "hits"));
    }
    if (descriptor.onExpiry() != null) {
      message.setOnExpiry(onExpiryOf(descriptor.onExpiry()));
    }
    return message.build();
  }

  private static tollgate.v1.Entry entryOf(Entry entry) {
    return tollgate.v1.Entry.newBuilder()
        .setKey(unicode(entry.key(), "the key of an entry"))
        .setValue(unicode(entry.value(), "the value of an entry"))
        .build();
  }

  private static tollgate.v1.Limit limitOf(Limit limit) {
    if (limit.requestsPerUnit() > UINT32_MAX) {
      throw new InvalidRequestException("requestsPerUnit is above " + UINT32_MAX);
    }
    return tollgate.v1.Limit.newBuilder()
        .setRequestsPerUnit((int) notNegative(limit.requestsPerUnit(), "requestsPerUnit"))
        .setUnit(tollgate.v1.Limit.Unit.valueOf(limit.unit().name()))
        .build();
  }

  private static ReserveRequest.OnExpiry onExpiryOf(OnExpiry onExpiry) {
    return ReserveRequest.OnExpiry.valueOf(onExpiry.name());
  }

  private static String unicode(String text, String what) {
    CharsetEncoder encoder = StandardCharsets.UTF_8.newEncoder();
    if (!encoder.canEncode(text)) {
      throw new InvalidRequestException(what + " is not Unicode");
    }
    return text;
  }

  private static long notNegative(long number, String what) {
    if (number < 0) {
      throw new InvalidRequestException(what + " is negative: " + number);
    }
    return number;
  }

  /** The request of a peek. It is equal for requests that have the same counters. */
  static tollgate.v1.Request peekOf(tollgate.v1.Request message) {
    tollgate.v1.Request.Builder builder = message.toBuilder().clearHits().clearRequestId();
    builder.getDescriptorsBuilderList().forEach(each -> each.clearHits().clearOnExpiry());
    return builder.build();
  }

  /** Stands for the counters of a request. It has a fixed size, whatever the request has. */
  static CounterKey countersOf(tollgate.v1.Request message) {
    try {
      byte[] digest = MessageDigest.getInstance("SHA-256").digest(peekOf(message).toByteArray());
      return new CounterKey(ByteBuffer.wrap(digest));
    } catch (NoSuchAlgorithmException error) {
      throw new IllegalStateException("every Java platform has SHA-256", error);
    }
  }

  record CounterKey(ByteBuffer digest) {}

  /** The hits of each descriptor. */
  static long[] hitsOf(tollgate.v1.Request message) {
    return message.getDescriptorsList().stream()
        .mapToLong(each -> each.hasHits() ? each.getHits() : Math.max(message.getHits(), 1))
        .toArray();
  }

  /** The answers to so many requests; another number is an error. */
  static <A> List<A> answersTo(int requests, List<A> answers) {
    if (answers.size() != requests) {
      String problem = answers.size() + " answers to " + requests + " requests";
      throw Status.INTERNAL.withDescription(problem).asRuntimeException();
    }
    return answers;
  }

  /** The results for so many keys; another number is an error. */
  static List<LimitResult> limitResultsOf(int keys, List<tollgate.v1.LimitResult> results) {
    return answersTo(keys, results).stream().map(Codec::limitResultOf).toList();
  }

  private static LimitResult limitResultOf(tollgate.v1.LimitResult result) {
    LimitException error = null;
    if (result.hasError()) {
      Status.Code code = Status.fromCodeValue(result.getError().getCode()).getCode();
      error = new LimitException(code, Elsewhere.reasonOf(result.getError()), result.getError().getMessage());
    }
    return new LimitResult(result.hasLimit() ? result.getLimit() : null, result.getRule(), error);
  }

  /** The message for the first page. */
  static ListLimitsRequest listOf(String domain, List<Entry> prefix) {
    ListLimitsRequest.Builder message = ListLimitsRequest.newBuilder().setDomain(unicode(domain, "the domain"));
    prefix.forEach(entry -> message.addPrefix(entryOf(entry)));
    return sized(message.build());
  }

  /** An answer without a verdict is an error. */
  static Decision decisionOf(Answer answer) {
    if (answer.getVerdict() != Answer.Verdict.ALLOWED && answer.getVerdict() != Answer.Verdict.DENIED) {
      throw answer.hasError()
          ? StatusProto.toStatusRuntimeException(answer.getError())
          : new StatusRuntimeException(Status.INTERNAL.withDescription("the server answered without a verdict"));
    }
    return new Decision(
        answer.getVerdict() == Answer.Verdict.ALLOWED,
        durationOf(answer.getDelay()),
        durationOf(answer.getRetryAfter()),
        answer.getLimitsList().stream().map(Codec::statusOf).toList(),
        answer.getDegraded(),
        Source.SERVER,
        null,
        answer.getNeverBecause());
  }

  private static LimitStatus statusOf(tollgate.v1.LimitStatus status) {
    return new LimitStatus(
        status.getDescriptorIndex(),
        status.getRule(),
        clamped(status.getRequestsPerUnit()),
        unitOf(status.getUnit()),
        clamped(status.getRemaining()),
        durationOf(status.getResetAfter()),
        durationOf(status.getRetryAfter()),
        status.getRefused(),
        status.getRefusedInShadow(),
        status.getRefusedByCandidate(),
        status.getDegraded());
  }

  private static Unit unitOf(tollgate.v1.Limit.Unit unit) {
    return unit == tollgate.v1.Limit.Unit.UNRECOGNIZED ? Unit.UNKNOWN : Unit.valueOf(unit.name());
  }

  // The field has 64 bits without a sign, and Java's long is signed.
  private static long clamped(long unsigned) {
    return unsigned < 0 ? Long.MAX_VALUE : unsigned;
  }

  private static java.time.Duration durationOf(Duration message) {
    return java.time.Duration.ofSeconds(message.getSeconds(), message.getNanos());
  }

  static ReserveRequest reserveOf(Request request, Terms terms, String id) {
    tollgate.v1.Request message = messageOf(request);
    Duration ttl =
        Duration.newBuilder().setSeconds(terms.ttl().getSeconds()).setNanos(terms.ttl().getNano()).build();
    return sized(
        ReserveRequest.newBuilder()
            .setDomain(message.getDomain())
            .addAllDescriptors(message.getDescriptorsList())
            .setAmount(message.getHits())
            .setTtl(ttl)
            .setReservationId(id)
            .setOnExpiry(onExpiryOf(terms.onExpiry()))
            .build());
  }

  static SettleRequest settleOf(Reservation reservation, long actual, Map<Integer, Long> hits) {
    tollgate.v1.Request message = messageOf(reservation.request());
    SettleRequest.Builder settle =
        SettleRequest.newBuilder()
            .setDomain(message.getDomain())
            .addAllDescriptors(message.getDescriptorsList())
            .setReservationId(reservation.id())
            .setActual(notNegative(actual, "actual"));
    int descriptors = settle.getDescriptorsCount();
    hits.forEach(
        (index, used) -> {
          if (index < 0 || index >= descriptors) {
            String problem = "hits of descriptor " + index + ", of " + descriptors + " descriptors";
            throw new InvalidRequestException(problem);
          }
          settle.getDescriptorsBuilder(index).setHits(notNegative(used, "hits"));
        });
    return settle.build();
  }

  static CancelRequest cancelOf(Reservation reservation) {
    tollgate.v1.Request message = messageOf(reservation.request());
    return CancelRequest.newBuilder()
        .setDomain(message.getDomain())
        .addAllDescriptors(message.getDescriptorsList())
        .setReservationId(reservation.id())
        .build();
  }

  static Settlement settlementOf(List<SettledLimit> limits, boolean unknown) {
    return new Settlement(limits.stream().map(Codec::settledOf).toList(), unknown);
  }

  private static Settlement.SettledLimit settledOf(SettledLimit limit) {
    return new Settlement.SettledLimit(
        limit.getDescriptorIndex(),
        limit.getRule(),
        limit.getOutcome() == SettledLimit.Outcome.UNRECOGNIZED
            ? Settlement.Outcome.UNKNOWN
            : Settlement.Outcome.valueOf(limit.getOutcome().name()),
        clamped(limit.getReserved()),
        clamped(limit.getNotCharged()),
        clamped(limit.getRemaining()),
        durationOf(limit.getResetAfter()));
  }
}
