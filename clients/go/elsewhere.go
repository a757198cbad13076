package tollgate

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/balancer"
	"google.golang.org/grpc/balancer/roundrobin"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The load balancing policy of the client: round robin, and the repetition of a call has another address.
const policyName = "tollgate_round_robin"

// More picks than there are addresses, and than other calls make meanwhile.
const picksMax = 1000

var errNoOtherAddress = errors.New("no other address is connected")

func init() {
	balancer.Register(policy{})
}

// attempt is one attempt of a call, in its context.
type attempt struct {
	// That of the attempt before; nil for the first one.
	avoided balancer.SubConn
	// Nil if there was none.
	used balancer.SubConn
}

type attemptKey struct{}

// repeatElsewhere repeats a call once that has charged nothing, if another address is connected.
func repeatElsewhere(
	ctx context.Context, method string, request, response any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption,
) error {
	first := &attempt{}
	err := invoke(context.WithValue(ctx, attemptKey{}, first), method, request, response, connection, options...)
	if first.used == nil || !chargedNothing(err) {
		return err
	}
	second := &attempt{avoided: first.used}
	again := invoke(context.WithValue(ctx, attemptKey{}, second), method, request, response, connection, options...)
	if second.used == nil {
		return err
	}
	return again
}

// chargedNothing says whether a replica has answered that it decides no calls yet.
func chargedNothing(err error) bool {
	answer := status.Convert(err)
	reason := reasonOf(answer)
	return answer.Code() == codes.Unavailable && (reason == "NO_RULES" || reason == "JOINING")
}

// reasonOf returns the reason in the details of an error. It is empty if there is none.
func reasonOf(answer *status.Status) string {
	for _, detail := range answer.Details() {
		if info, isInfo := detail.(*errdetails.ErrorInfo); isInfo {
			return info.Reason
		}
	}
	return ""
}

type policy struct{}

func (policy) Name() string {
	return policyName
}

func (policy) Build(connection balancer.ClientConn, options balancer.BuildOptions) balancer.Balancer {
	return balancer.Get(roundrobin.Name).Build(&pickedConn{connection}, options)
}

// pickedConn replaces the pickers of round robin.
type pickedConn struct {
	balancer.ClientConn
}

func (c *pickedConn) UpdateState(state balancer.State) {
	state.Picker = picker{state.Picker}
	c.ClientConn.UpdateState(state)
}

type picker struct {
	balancer.Picker
}

func (p picker) Pick(info balancer.PickInfo) (balancer.PickResult, error) {
	attempt, isAttempt := info.Ctx.Value(attemptKey{}).(*attempt)
	if !isAttempt {
		return p.Picker.Pick(info)
	}
	for range picksMax {
		result, err := p.Picker.Pick(info)
		if err != nil {
			return result, err
		}
		if result.SubConn != attempt.avoided {
			attempt.used = result.SubConn
			return result, nil
		}
	}
	return balancer.PickResult{}, errNoOtherAddress
}
