package tollgate;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import io.grpc.CallOptions;
import io.grpc.ConnectivityState;
import io.grpc.LoadBalancer;
import io.grpc.LoadBalancer.Helper;
import io.grpc.LoadBalancer.PickResult;
import io.grpc.LoadBalancer.PickSubchannelArgs;
import io.grpc.LoadBalancer.Subchannel;
import io.grpc.LoadBalancer.SubchannelPicker;
import io.grpc.LoadBalancerProvider;
import io.grpc.LoadBalancerRegistry;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import io.grpc.util.ForwardingLoadBalancerHelper;
import java.util.Set;

/** The load balancing policy: round robin, and the repetition of a call has another address. */
final class Elsewhere extends LoadBalancerProvider {

  static final String POLICY = "tollgate_round_robin";
  static final CallOptions.Key<Attempt> ATTEMPT = CallOptions.Key.create("tollgate-attempt");

  // More picks than there are addresses, and than other calls make meanwhile.
  private static final int PICKS_MAX = 1000;
  private static final Set<String> NOTHING_CHARGED = Set.of("NO_RULES", "JOINING");

  /** One attempt of a call, in its options. */
  static final class Attempt {
    // That of the attempt before; null for the first one.
    private final Subchannel avoided;
    /** Null if there was none. */
    volatile Subchannel used;

    Attempt(Subchannel avoided) {
      this.avoided = avoided;
    }
  }

  /** Says whether a replica has answered that it decides no calls yet. */
  static boolean chargedNothing(Throwable error) {
    com.google.rpc.Status status = StatusProto.fromThrowable(error);
    if (status == null || status.getCode() != Status.Code.UNAVAILABLE.value()) {
      return false;
    }
    return NOTHING_CHARGED.contains(reasonOf(status));
  }

  /** The reason in the details of an error; empty if there is none, or if they cannot be read. */
  static String reasonOf(com.google.rpc.Status status) {
    for (Any detail : status.getDetailsList()) {
      if (detail.is(ErrorInfo.class)) {
        try {
          return detail.unpack(ErrorInfo.class).getReason();
        } catch (InvalidProtocolBufferException error) {
          return "";
        }
      }
    }
    return "";
  }

  @Override
  public boolean isAvailable() {
    return true;
  }

  @Override
  public int getPriority() {
    return 5;
  }

  @Override
  public String getPolicyName() {
    return POLICY;
  }

  @Override
  public LoadBalancer newLoadBalancer(Helper helper) {
    Helper picking =
        new ForwardingLoadBalancerHelper() {
          @Override
          protected Helper delegate() {
            return helper;
          }

          @Override
          public void updateBalancingState(ConnectivityState state, SubchannelPicker picker) {
            helper.updateBalancingState(state, new Picker(picker));
          }
        };
    return LoadBalancerRegistry.getDefaultRegistry().getProvider("round_robin").newLoadBalancer(picking);
  }

  private static final class Picker extends SubchannelPicker {
    private final SubchannelPicker roundRobin;

    private Picker(SubchannelPicker roundRobin) {
      this.roundRobin = roundRobin;
    }

    @Override
    public PickResult pickSubchannel(PickSubchannelArgs arguments) {
      Attempt attempt = arguments.getCallOptions().getOption(ATTEMPT);
      for (int picks = 0; picks < PICKS_MAX; picks++) {
        PickResult result = roundRobin.pickSubchannel(arguments);
        if (attempt == null || result.getSubchannel() == null) {
          return result;
        }
        if (result.getSubchannel() != attempt.avoided) {
          attempt.used = result.getSubchannel();
          return result;
        }
      }
      return PickResult.withError(Status.UNAVAILABLE.withDescription("no other address is connected"));
    }
  }
}
