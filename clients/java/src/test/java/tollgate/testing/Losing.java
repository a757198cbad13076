package tollgate.testing;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ForwardingClientCall.SimpleForwardingClientCall;
import io.grpc.ForwardingClientCallListener.SimpleForwardingClientCallListener;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.util.concurrent.atomic.AtomicInteger;

/** Loses answers to the calls of one method: the server answers, and the client does not learn of it. */
public final class Losing implements ClientInterceptor {

  private final MethodDescriptor<?, ?> lossy;
  private final int most;
  private final AtomicInteger lost = new AtomicInteger();

  /** Loses all answers. */
  public Losing(MethodDescriptor<?, ?> lossy) {
    this(lossy, Integer.MAX_VALUE);
  }

  /** Loses at most so many answers. */
  public Losing(MethodDescriptor<?, ?> lossy, int most) {
    this.lossy = lossy;
    this.most = most;
  }

  @Override
  public <Q, A> ClientCall<Q, A> interceptCall(MethodDescriptor<Q, A> method, CallOptions options, Channel next) {
    ClientCall<Q, A> call = next.newCall(method, options);
    return method != lossy || lost.get() >= most ? call : new LossyCall<>(call);
  }

  /** The number of answers that were lost. */
  public int lost() {
    return lost.get();
  }

  private final class LossyCall<Q, A> extends SimpleForwardingClientCall<Q, A> {

    private LossyCall(ClientCall<Q, A> call) {
      super(call);
    }

    @Override
    public void start(Listener<A> listener, Metadata headers) {
      super.start(
          new SimpleForwardingClientCallListener<A>(listener) {
            @Override
            public void onMessage(A message) {
              lost.incrementAndGet();
            }

            @Override
            public void onClose(Status status, Metadata trailers) {
              super.onClose(Status.UNAVAILABLE.withDescription("the answer is lost"), trailers);
            }
          },
          headers);
    }
  }
}
