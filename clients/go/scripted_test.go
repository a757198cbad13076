package tollgate

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpc "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "example.com/tollgate/gen/tollgate/v1"
)

// The notation of clients/vectors; clients/behaviour.md describes it.

// LoadVectors decodes a file of vectors.
func LoadVectors[T any](t *testing.T, name string) []T {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "vectors", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors []T
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	return vectors
}

// VectorRequest is a request in a vector.
type VectorRequest struct {
	Domain      *string
	User        string
	Pad         int
	Descriptors []struct {
		Entries  [][2]string
		Limit    []any
		Hits     *uint64
		OnExpiry string `json:"on_expiry"`
	}
	Hits      *uint64
	RequestID string `json:"request_id"`
}

func (r *VectorRequest) UnmarshalJSON(text []byte) error {
	if text[0] == '"' {
		return json.Unmarshal(text, &r.User)
	}
	type object VectorRequest
	return json.Unmarshal(text, (*object)(r))
}

// Request returns it as the caller writes it.
func (r *VectorRequest) Request() Request {
	request := Request{Domain: "edge", Hits: 1, RequestID: r.RequestID}
	if r.Domain != nil {
		request.Domain = *r.Domain
	}
	if r.Hits != nil {
		request.Hits = *r.Hits
	}
	if r.User != "" {
		request.Descriptors = []Descriptor{Describe("user", r.User+strings.Repeat("x", r.Pad))}
	}
	for _, each := range r.Descriptors {
		descriptor := Descriptor{Hits: each.Hits}
		for _, entry := range each.Entries {
			descriptor = descriptor.And(entry[0], entry[1])
		}
		if each.Limit != nil {
			unit := Unit(pb.Limit_Unit_value[strings.ToUpper(each.Limit[1].(string))])
			descriptor.Limit = &Limit{RequestsPerUnit: uint32(each.Limit[0].(float64)), Unit: unit}
		}
		if each.OnExpiry != "" {
			descriptor.OnExpiry = OnExpiry(pb.ReserveRequest_OnExpiry_value[strings.ToUpper(each.OnExpiry)]).Enum()
		}
		request.Descriptors = append(request.Descriptors, descriptor)
	}
	return request
}

// vectorError is the code, the message and, if there is one, the reason of an error.
type vectorError []string

func (e vectorError) status() *rpc.Status {
	answer := &rpc.Status{Code: code.Code_value[e[0]], Message: e[1]}
	for _, reason := range e[2:] {
		// Each message can be encoded.
		info, _ := anypb.New(&errdetails.ErrorInfo{Reason: reason, Domain: "tollgate"})
		answer.Details = append(answer.Details, info)
	}
	return answer
}

// VectorAnswer is an answer of the server in a vector.
type VectorAnswer struct {
	Verdict      string
	Delay        float64  `json:"delay_ms"`
	RetryAfter   *float64 `json:"retry_after_ms"`
	Limits       []vectorLimit
	Error        vectorError
	NeverBecause string `json:"never_because"`
}

type vectorLimit struct {
	RequestsPerUnit uint64 `json:"requests_per_unit"`
	Remaining       uint64
	ResetAfter      float64 `json:"reset_after_ms"`
	RetryAfter      float64 `json:"retry_after_ms"`
	Refused         bool
}

// A pair has the hits that remain, and the time until the reset.
func (l *vectorLimit) UnmarshalJSON(text []byte) error {
	if text[0] == '[' {
		return json.Unmarshal(text, &[]any{&l.Remaining, &l.ResetAfter})
	}
	type object vectorLimit
	return json.Unmarshal(text, (*object)(l))
}

func (a *VectorAnswer) UnmarshalJSON(text []byte) error {
	if text[0] == '"' {
		return json.Unmarshal(text, &a.Verdict)
	}
	if text[0] == '[' {
		text = fmt.Appendf(nil, `{"verdict": "allowed", "limits": [%s]}`, text)
	}
	type object VectorAnswer
	return json.Unmarshal(text, (*object)(a))
}

func (a *VectorAnswer) message() *pb.Answer {
	answer := &pb.Answer{Verdict: pb.Answer_Verdict(pb.Answer_Verdict_value[strings.ToUpper(a.Verdict)])}
	answer.NeverBecause = a.NeverBecause
	answer.Delay = durationpb.New(milliseconds(a.Delay))
	if a.RetryAfter != nil {
		answer.RetryAfter = durationpb.New(milliseconds(*a.RetryAfter))
	}
	if a.Error != nil {
		answer.Error = a.Error.status()
	}
	for _, limit := range a.Limits {
		answer.Limits = append(answer.Limits, &pb.LimitStatus{
			RequestsPerUnit: limit.RequestsPerUnit, Unit: pb.Limit_MINUTE, Remaining: limit.Remaining, Refused: limit.Refused,
			ResetAfter: durationpb.New(milliseconds(limit.ResetAfter)),
			RetryAfter: durationpb.New(milliseconds(limit.RetryAfter)),
		})
	}
	return answer
}

func milliseconds(number float64) time.Duration {
	return time.Duration(number * float64(time.Millisecond))
}

// differences says where a value does not have what is expected of it; other fields may be there.
func differences(expected, value any) string {
	object, isObject := expected.(map[string]any)
	if list, isList := expected.([]any); isList {
		if found, _ := value.([]any); len(found) > len(list) {
			value = found[:len(list)]
		}
	}
	if !isObject {
		if reflect.DeepEqual(expected, value) {
			return ""
		}
		return fmt.Sprintf(" %v instead of %v", value, expected)
	}
	found, _ := value.(map[string]any)
	text := ""
	for name, each := range object {
		if difference := differences(each, found[name]); difference != "" {
			text += " " + name + ":" + difference
		}
	}
	return text
}

func describeDecision(decision Decision) map[string]any {
	described := map[string]any{"allowed": decision.Allowed, "source": decision.Source.String()}
	if decision.RetryAfter > 0 {
		described["retry_after_ms"] = float64(decision.RetryAfter.Milliseconds())
	}
	if reason := decision.NoAnswer; reason != nil {
		described["no_answer"] = []any{code.Code(reason.Code).String(), reason.Message}
	}
	return described
}

// ScriptedServer is one or several servers on the loopback whose calls wait for the replies of a script.
type ScriptedServer struct {
	pb.UnimplementedRateLimiterServer
	// That of the first one.
	Address string
	servers int
	calls   chan *scriptedCall
}

// scriptedCall is a call that a server has received.
type scriptedCall struct {
	server  int
	message proto.Message
	// Whether it has a token.
	authorized bool
	reply      chan scriptedReply
}

type scriptedReply struct {
	Answers []*VectorAnswer
	Fails   vectorError
	HeldAs  *string `json:"held_as"`
	Ended   bool
}

// StartScripted starts a server, which stops at the end of the test.
func StartScripted(t *testing.T) *ScriptedServer {
	t.Helper()
	scripted := &ScriptedServer{calls: make(chan *scriptedCall, 16)}
	scripted.Address = scripted.listen(t)
	return scripted
}

// listen starts another server, and returns its address.
func (s *ScriptedServer) listen(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	number := s.servers
	s.servers++
	server := grpc.NewServer(grpc.UnaryInterceptor(func(
		ctx context.Context, message any, _ *grpc.UnaryServerInfo, _ grpc.UnaryHandler,
	) (any, error) {
		return s.serve(ctx, number, message)
	}))
	pb.RegisterRateLimiterServer(server, s)
	// It returns at the stop.
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return listener.Addr().String()
}

// targets resolves to the addresses of a vector, and starts their servers.
func (s *ScriptedServer) targets(t *testing.T, addresses []string) *manual.Resolver {
	state := resolver.State{}
	for i, address := range addresses {
		switch {
		case address == "server" && i == 0:
			address = s.Address
		case address == "server":
			address = s.listen(t)
		}
		endpoint := resolver.Endpoint{Addresses: []resolver.Address{{Addr: address}}}
		state.Endpoints = append(state.Endpoints, endpoint)
	}
	targets := manual.NewBuilderWithScheme("scripted")
	targets.InitialState(state)
	return targets
}

// Answer replies to the next call, a check.
func (s *ScriptedServer) Answer(answer *VectorAnswer) {
	(<-s.calls).reply <- scriptedReply{Answers: []*VectorAnswer{answer}}
}

func (s *ScriptedServer) serve(ctx context.Context, server int, message any) (any, error) {
	received, _ := metadata.FromIncomingContext(ctx)
	authorized := len(received.Get("authorization")) > 0
	call := &scriptedCall{server, message.(proto.Message), authorized, make(chan scriptedReply, 1)}
	s.calls <- call
	var reply scriptedReply
	select {
	case reply = <-call.reply:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if reply.Fails != nil {
		return nil, status.ErrorProto(reply.Fails.status())
	}
	answers := make([]*pb.Answer, len(reply.Answers))
	for i, answer := range reply.Answers {
		answers[i] = answer.message()
	}
	switch message := message.(type) {
	case *pb.CheckRequest:
		return &pb.CheckResponse{Answers: answers}, nil
	case *pb.PeekRequest:
		return &pb.PeekResponse{Answers: answers}, nil
	case *pb.RefundRequest:
		return &pb.RefundResponse{Answers: answers}, nil
	case *pb.ReserveRequest:
		id := message.GetReservationId()
		if reply.HeldAs != nil {
			id = *reply.HeldAs
		}
		return &pb.ReserveResponse{Answer: answers[0], ReservationId: id, Ended: reply.Ended}, nil
	case *pb.SettleRequest:
		return &pb.SettleResponse{}, nil
	default:
		return &pb.CancelResponse{}, nil
	}
}
