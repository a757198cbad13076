package tollgate.testing;

import io.grpc.EquivalentAddressGroup;
import io.grpc.NameResolver;
import io.grpc.NameResolverProvider;
import io.grpc.StatusOr;
import java.net.InetSocketAddress;
import java.net.URI;
import java.util.List;

/** The name {@code replicas:///tollgate}, which has several addresses. */
public final class Replicas extends NameResolverProvider {
  private final List<EquivalentAddressGroup> addresses;

  public Replicas(List<String> addresses) {
    this.addresses = addresses.stream().map(Replicas::parsed).toList();
  }

  private static EquivalentAddressGroup parsed(String address) {
    URI uri = URI.create("tcp://" + address);
    return new EquivalentAddressGroup(new InetSocketAddress(uri.getHost(), uri.getPort()));
  }

  @Override
  protected boolean isAvailable() {
    return true;
  }

  @Override
  protected int priority() {
    return 5;
  }

  @Override
  public String getDefaultScheme() {
    return "replicas";
  }

  @Override
  public NameResolver newNameResolver(URI target, NameResolver.Args arguments) {
    return new NameResolver() {
      @Override
      public String getServiceAuthority() {
        return "tollgate";
      }

      @Override
      public void start(Listener2 listener) {
        listener.onResult(ResolutionResult.newBuilder().setAddressesOrError(StatusOr.fromValue(addresses)).build());
      }

      @Override
      public void shutdown() {}
    };
  }
}
