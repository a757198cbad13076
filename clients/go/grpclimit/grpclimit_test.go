package grpclimit_test

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"example.com/tollgate"
	"example.com/tollgate/grpclimit"
	"example.com/tollgate/internal/servertest"
)

const rules = `
domain: edge
descriptors:
  - key: user
    descriptors:
      - key: method
        rate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}
`

// describe limits each user of the metadata, for each method.
func describe(ctx context.Context, method string, _ any) *tollgate.Request {
	users := metadata.ValueFromIncomingContext(ctx, "user-bin")
	if len(users) == 0 {
		return nil
	}
	descriptor := tollgate.Describe("user", users[0]).And("method", method)
	return &tollgate.Request{Domain: "edge", Descriptors: []tollgate.Descriptor{descriptor}}
}

// limited starts a gRPC server with the health service, limited by Tollgate, and returns a client of it.
func limited(t *testing.T, target string, options tollgate.Options) grpc_health_v1.HealthClient {
	t.Helper()
	client, err := tollgate.New(target, options)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.UnaryInterceptor(grpclimit.UnaryServerInterceptor(client, describe)),
		grpc.StreamInterceptor(grpclimit.StreamServerInterceptor(client, describe)),
	)
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	connection, err := grpc.NewClient(
		listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Stop()
		for _, err := range []error{<-served, connection.Close(), client.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	})
	return grpc_health_v1.NewHealthClient(connection)
}

// as returns the context of a call of this user.
func as(t *testing.T, user string) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), "user-bin", user)
}

// unary makes a unary call and returns its metadata.
func unary(ctx context.Context, client grpc_health_v1.HealthClient) (metadata.MD, error) {
	var header metadata.MD
	_, err := client.Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.Header(&header))
	return header, err
}

// stream makes a streaming call, takes one message and returns the metadata.
func stream(ctx context.Context, client grpc_health_v1.HealthClient) (metadata.MD, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch, err := client.Watch(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		return nil, err
	}
	if _, err := watch.Recv(); err != nil {
		header, _ := watch.Header()
		return header, err
	}
	return watch.Header()
}

var calls = map[string]func(context.Context, grpc_health_v1.HealthClient) (metadata.MD, error){
	"unary": unary, "stream": stream,
}

func limitIn(header metadata.MD) [2]string {
	values := [2]string{}
	for i, name := range []string{"ratelimit-limit", "ratelimit-remaining"} {
		if found := header.Get(name); len(found) == 1 {
			values[i] = found[0]
		}
	}
	return values
}

func TestCall_OverItsLimit_IsRefusedWithRetryInfo(t *testing.T) {
	client := limited(t, servertest.Start(t, rules).Address, tollgate.Options{Timeout: servertest.Patience})
	for name, call := range calls {
		header, err := call(as(t, "ann"), client)
		if err != nil || limitIn(header) != [2]string{"1", "0"} {
			t.Errorf("%s: %v %v", name, header, err)
		}

		header, err = call(as(t, "ann"), client)

		refused := status.Convert(err)
		if refused.Code() != codes.ResourceExhausted || limitIn(header) != [2]string{"1", "0"} {
			t.Errorf("%s: %v %v", name, header, err)
		}
		if len(refused.Details()) != 1 {
			t.Fatalf("%s: %v", name, refused.Details())
		}
		retry, ok := refused.Details()[0].(*errdetails.RetryInfo)
		if wait := retry.GetRetryDelay().AsDuration(); !ok || wait < 50*time.Minute || wait > time.Hour {
			t.Errorf("%s: %v", name, refused.Details())
		}
	}
}

func TestCall_WithoutDescription_IsNotLimited(t *testing.T) {
	client := limited(t, servertest.Start(t, rules).Address, tollgate.Options{Timeout: servertest.Patience})
	for name, call := range calls {
		for range 3 {
			if header, err := call(t.Context(), client); err != nil || limitIn(header) != [2]string{} {
				t.Errorf("%s: %v %v", name, header, err)
			}
		}
	}
}

func TestInvalidDescription_OfACall_IsAnErrorOfTheServer(t *testing.T) {
	client := limited(t, servertest.Start(t, rules).Address, tollgate.Options{Timeout: servertest.Patience})
	for name, call := range calls {
		if _, err := call(as(t, "\xff"), client); status.Code(err) != codes.Internal {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCall_WithoutTollgate_GetsTheDefault(t *testing.T) {
	for fallback, want := range map[tollgate.Default]codes.Code{
		tollgate.Allow: codes.OK, tollgate.Deny: codes.ResourceExhausted,
	} {
		// Nothing listens on port 1.
		client := limited(t, "127.0.0.1:1", tollgate.Options{OnNoAnswer: fallback})
		for name, call := range calls {
			_, err := call(as(t, "ann"), client)
			if status.Code(err) != want || len(status.Convert(err).Details()) > 0 {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
