package tollgate.testing;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.MethodDescriptor;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;

/** Holds all calls to the server until it is opened. */
public final class Gate implements ClientInterceptor {

  private final CountDownLatch opened = new CountDownLatch(1);
  private final AtomicInteger waiting = new AtomicInteger();

  @Override
  public <Q, A> ClientCall<Q, A> interceptCall(MethodDescriptor<Q, A> method, CallOptions options, Channel next) {
    waiting.incrementAndGet();
    try {
      opened.await();
    } catch (InterruptedException error) {
      throw new IllegalStateException(error);
    }
    return next.newCall(method, options);
  }

  public int waiting() {
    return waiting.get();
  }

  public void open() {
    opened.countDown();
  }
}
