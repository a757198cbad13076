package tollgate_test

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"example.com/tollgate"
	"example.com/tollgate/grpclimit"
	"example.com/tollgate/httplimit"
)

// Middleware takes either.
var _ = []tollgate.Checker{(*tollgate.Client)(nil), (*tollgate.PrepaidSlices)(nil)}

// limitedCall is a vector of middleware.
type limitedCall struct {
	Name    string
	Accept  string
	Options map[string]any
	Request *tollgate.VectorRequest
	Answer  *tollgate.VectorAnswer
	Passes  bool
	Waits   int64 `json:"waits_ms"`
	Limit   map[string]string
	HTTP    struct {
		Status     int
		RetryAfter *string `json:"retry_after"`
		Type       string
		Body       *string
	}
	GRPC struct {
		Code, Message string
		RetryDelay    *int64 `json:"retry_delay_ms"`
	}
}

// describe returns the request of the vector.
func (c *limitedCall) describe() *tollgate.Request {
	if c.Request == nil {
		return nil
	}
	request := c.Request.Request()
	return &request
}

// client returns a client of a server that gives the answer.
func (c *limitedCall) client(t *testing.T) *tollgate.Client {
	server := tollgate.StartScripted(t)
	if c.Answer != nil {
		go server.Answer(c.Answer)
	}
	return newClient(t, server.Address, tollgate.VectorOptions(c.Options))
}

// compare compares what any caller sees.
func (c *limitedCall) compare(t *testing.T, passes bool, begin time.Time, header func(name string) []string) {
	if waited := time.Since(begin); passes != c.Passes || waited.Milliseconds() < c.Waits {
		t.Errorf("passes: %t, after %s", passes, waited)
	}
	for _, name := range []string{"ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"} {
		var wanted []string
		if value, isThere := c.Limit[name]; isThere {
			wanted = []string{value}
		}
		if found := header(name); !slices.Equal(found, wanted) {
			t.Errorf("%s: %v", name, found)
		}
	}
}

func (c *limitedCall) overHTTP(t *testing.T) {
	passes := false
	limit := httplimit.Middleware(c.client(t), func(*http.Request) *tollgate.Request { return c.describe() })
	handler := limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passes = true }))
	response, begin := httptest.NewRecorder(), time.Now()

	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
	if c.Accept != "" {
		request.Header.Set("Accept", c.Accept)
	}
	handler.ServeHTTP(response, request)

	c.compare(t, passes, begin, response.Header().Values)
	var retryAfter []string
	if c.HTTP.RetryAfter != nil {
		retryAfter = []string{*c.HTTP.RetryAfter}
	}
	isRefused := response.Code == c.HTTP.Status && slices.Equal(response.Header().Values("Retry-After"), retryAfter)
	if body := c.HTTP.Body; body != nil {
		mediaType, _, _ := strings.Cut(response.Header().Get("Content-Type"), ";")
		isRefused = isRefused && response.Body.String() == *body && mediaType == cmp.Or(c.HTTP.Type, "text/plain")
	}
	if !passes && !isRefused {
		t.Errorf("%d %v %s", response.Code, response.Header(), response.Body)
	}
}

// overGRPC makes a call, which returns its metadata, of the health service of a limited server.
func (c *limitedCall) overGRPC(
	t *testing.T, call func(context.Context, grpc_health_v1.HealthClient) (metadata.MD, error),
) {
	client := c.client(t)
	describe := func(context.Context, string, any) *tollgate.Request { return c.describe() }
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.UnaryInterceptor(grpclimit.UnaryServerInterceptor(client, describe)),
		grpc.StreamInterceptor(grpclimit.StreamServerInterceptor(client, describe)),
	)
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	// It returns at the stop.
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	connection, err := grpc.NewClient(
		listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
	)
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	begin := time.Now()

	header, err := call(t.Context(), grpc_health_v1.NewHealthClient(connection))

	c.compare(t, err == nil, begin, header.Get)
	if err == nil {
		return
	}
	refused := status.Convert(err)
	if code.Code(refused.Code()).String() != c.GRPC.Code || refused.Message() != c.GRPC.Message {
		t.Error(err)
	}
	var delays []int64
	for _, detail := range refused.Details() {
		delays = append(delays, detail.(*errdetails.RetryInfo).GetRetryDelay().AsDuration().Milliseconds())
	}
	if wanted := c.GRPC.RetryDelay; len(delays) > 0 != (wanted != nil) || (wanted != nil && delays[0] != *wanted) {
		t.Errorf("retry delays of %v ms", delays)
	}
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
	_, err = watch.Recv()
	header, _ := watch.Header()
	return header, err
}

func TestMiddleware_OfVectors_RespondsAsTheySay(t *testing.T) {
	for _, vector := range tollgate.LoadVectors[limitedCall](t, "middleware") {
		t.Run(vector.Name+"/http", vector.overHTTP)
		t.Run(vector.Name+"/unary", func(t *testing.T) { vector.overGRPC(t, unary) })
		t.Run(vector.Name+"/stream", func(t *testing.T) { vector.overGRPC(t, stream) })
	}
}
