package main

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	descriptor "example.com/tollgate-client/gen/envoy/extensions/common/ratelimit/v3"
	ratelimit "example.com/tollgate-client/gen/envoy/service/ratelimit/v3"
)

// OnError is what happens to a request when Tollgate gives no answer.
type OnError string

const (
	// Allow is for protection against overload: losing the limiter must not mean losing the service.
	Allow OnError = "allow"
	// Deny is for limits that guard money, logins or secrets.
	Deny OnError = "deny"
)

// Decision is what to do with a request.
type Decision struct {
	Allowed bool
	// Remaining is what is left of the tightest limit; nil where no limit applies or nobody answered.
	Remaining *uint32
	// RetryAfter is the wait after which a refused request would pass.
	RetryAfter time.Duration
	// NoAnswer is why Tollgate did not answer; OnError has decided then.
	NoAnswer error
}

// Limiter asks Tollgate. Make one for the whole process: its connection carries all calls at once and
// comes back by itself. It may be shared by all goroutines.
type Limiter struct {
	connection *grpc.ClientConn
	client     ratelimit.RateLimitServiceClient
	timeout    time.Duration
	onError    OnError
}

// NewLimiter does not wait for the connection, so a service starts while Tollgate is down.
func NewLimiter(to string, timeout time.Duration, onError OnError) (*Limiter, error) {
	// Left alone, gRPC waits up to two minutes before it tries again to connect.
	retry := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}
	connection, err := grpc.NewClient(to,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: 5 * time.Second}),
		// A peer that vanished without a word is noticed by this.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}),
	)
	if err != nil {
		return nil, err
	}
	return &Limiter{connection, ratelimit.NewRateLimitServiceClient(connection), timeout, onError}, nil
}

// Ask charges hits to the descriptor that the entries make.
func (l *Limiter) Ask(
	ctx context.Context, domain string, entries []*descriptor.RateLimitDescriptor_Entry, hits uint32,
) Decision {
	// Without a deadline a silent peer would hold the request for ever.
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	answer, err := l.client.ShouldRateLimit(ctx, &ratelimit.RateLimitRequest{
		Domain:      domain,
		Descriptors: []*descriptor.RateLimitDescriptor{{Entries: entries}},
		HitsAddend:  hits,
	})
	if err != nil {
		return Decision{Allowed: l.onError == Allow, NoAnswer: err}
	}
	return decisionOf(answer)
}

// Close ends the connection.
func (l *Limiter) Close() error {
	return l.connection.Close()
}

func decisionOf(answer *ratelimit.RateLimitResponse) Decision {
	denied := answer.OverallCode == ratelimit.RateLimitResponse_OVER_LIMIT
	decision := Decision{Allowed: !denied}
	for _, status := range answer.Statuses {
		if status.CurrentLimit != nil && (decision.Remaining == nil || status.LimitRemaining < *decision.Remaining) {
			decision.Remaining = &status.LimitRemaining
		}
		// Where several limits refuse, the longest wait counts.
		if denied && status.Code == ratelimit.RateLimitResponse_OVER_LIMIT {
			decision.RetryAfter = max(decision.RetryAfter, status.DurationUntilReset.AsDuration())
		}
	}
	return decision
}
