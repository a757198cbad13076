package tollgate.testing;

import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Message;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerInterceptor;
import io.grpc.ServerInterceptors;
import io.grpc.ServerServiceDefinition;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.ServerCalls;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import tollgate.v1.RateLimiterGrpc;
import tools.jackson.databind.JsonNode;

/** One or several servers on the loopback whose calls wait for the replies of a script. */
public final class ScriptedServer implements AutoCloseable {

  private static final List<MethodDescriptor<? extends Message, ? extends Message>> METHODS =
      List.of(
          RateLimiterGrpc.getCheckMethod(),
          RateLimiterGrpc.getPeekMethod(),
          RateLimiterGrpc.getRefundMethod(),
          RateLimiterGrpc.getReserveMethod(),
          RateLimiterGrpc.getSettleMethod(),
          RateLimiterGrpc.getCancelMethod());

  private final BlockingQueue<Call> calls = new LinkedBlockingQueue<>();
  private final List<Server> servers = new ArrayList<>();

  public ScriptedServer() throws IOException {
    start();
  }

  /** Starts another server, and returns its address. */
  public String start() throws IOException {
    ServerServiceDefinition.Builder service = ServerServiceDefinition.builder(RateLimiterGrpc.SERVICE_NAME);
    int number = servers.size();
    METHODS.forEach(method -> add(service, number, method));
    Server server =
        Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create())
            .addService(ServerInterceptors.intercept(service.build(), new WithoutToken()))
            .maxInboundMessageSize(16 << 20)
            .build()
            .start();
    servers.add(server);
    return "127.0.0.1:" + server.getPort();
  }

  /** Refuses calls with a token: clients send it with no call of a script. */
  private static final class WithoutToken implements ServerInterceptor {
    private static final Metadata.Key<String> TOKEN =
        Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

    @Override
    public <Q, A> ServerCall.Listener<Q> interceptCall(
        ServerCall<Q, A> call, Metadata headers, ServerCallHandler<Q, A> next) {
      if (headers.containsKey(TOKEN)) {
        call.close(Status.INTERNAL.withDescription("the admin token is sent"), new Metadata());
        return new ServerCall.Listener<>() {};
      }
      return next.startCall(call, headers);
    }
  }

  private <Q extends Message, A extends Message> void add(
      ServerServiceDefinition.Builder service, int server, MethodDescriptor<Q, A> method) {
    A empty = ((MethodDescriptor.PrototypeMarshaller<A>) method.getResponseMarshaller()).getMessagePrototype();
    service.addMethod(
        method,
        ServerCalls.asyncUnaryCall(
            (message, observer) -> {
              // A canceled call may be replied to.
              ((ServerCallStreamObserver<A>) observer).setOnCancelHandler(() -> {});
              calls.add(new Call(server, method.getBareMethodName().toLowerCase(), message, empty, observer));
            }));
  }

  /** A call that the server with this number has received, and its empty response. */
  public record Call(
      int server, String method, Message message, Message empty, StreamObserver<? extends Message> observer) {

    /** The value of a field of the message. */
    @SuppressWarnings("unchecked")
    public <T> T get(String field) {
      return (T) message.getField(message.getDescriptorForType().findFieldByName(field));
    }

    /** Replies as a step of a script says. */
    @SuppressWarnings("unchecked")
    public void reply(JsonNode step) {
      if (step.has("fails")) {
        observer.onError(StatusProto.toStatusRuntimeException(Vectors.errorOf(step.get("fails"))));
        return;
      }
      Message.Builder response = empty.newBuilderForType();
      FieldDescriptor answers = empty.getDescriptorForType().findFieldByName("answers");
      FieldDescriptor answer = empty.getDescriptorForType().findFieldByName("answer");
      for (JsonNode each : step.path("answers")) {
        if (answers != null) {
          response.addRepeatedField(answers, Vectors.answerOf(each));
        } else {
          response.setField(answer, Vectors.answerOf(each));
        }
      }
      if (answer != null) {
        FieldDescriptor id = empty.getDescriptorForType().findFieldByName("reservation_id");
        response.setField(id, step.path("held_as").asString(this.<String>get("reservation_id")));
        response.setField(
            empty.getDescriptorForType().findFieldByName("ended"), step.path("ended").asBoolean(false));
      }
      ((StreamObserver<Message>) observer).onNext(response.build());
      observer.onCompleted();
    }
  }

  public String address() {
    return "127.0.0.1:" + servers.get(0).getPort();
  }

  /** The number of servers. */
  public int size() {
    return servers.size();
  }

  /** The next call. */
  public Call next() throws InterruptedException {
    Call call = calls.poll(TollgateServer.PATIENCE.toSeconds(), TimeUnit.SECONDS);
    if (call == null) {
      throw new AssertionError("no call");
    }
    return call;
  }

  /** Whether no call waits to be taken. */
  public boolean isIdle() {
    return calls.isEmpty();
  }

  @Override
  public void close() {
    servers.forEach(Server::shutdownNow);
  }
}
