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

// OnError is what happens to a request if Tollgate gives no answer.
type OnError string

const (
	// Allow is for protection against overload: an outage of the limiter must not be an outage of the service.
	Allow OnError = "allow"
	// Deny is for limits that protect money, logins or secrets.
	Deny OnError = "deny"
)

// Decision is what to do with a request.
type Decision struct {
	Allowed bool
	// Remaining is what is left of the tightest limit; nil if no limit applies or there was no answer.
	Remaining *uint32
	// RetryAfter is the time after which a refused request would pass.
	RetryAfter time.Duration
	// NoAnswer is the reason why Tollgate gave no answer, in which case OnError has decided.
	NoAnswer error
}

// Limiter calls Tollgate. Create one for the whole process and share it between goroutines: its connection multiplexes
// all calls and reconnects by itself.
type Limiter struct {
	connection *grpc.ClientConn
	client     ratelimit.RateLimitServiceClient
	timeout    time.Duration
	onError    OnError
}

// NewLimiter does not wait for the connection, so a service can start while Tollgate is down.
func NewLimiter(to string, timeout time.Duration, onError OnError) (*Limiter, error) {
	// By default gRPC waits up to two minutes before it reconnects.
	retry := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}
	connection, err := grpc.NewClient(to,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: 5 * time.Second}),
		// Detects a peer that disappeared without closing the connection.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 2 * time.Second}),
	)
	if err != nil {
		return nil, err
	}
	return &Limiter{connection, ratelimit.NewRateLimitServiceClient(connection), timeout, onError}, nil
}

// Ask charges hits to the descriptor with these entries.
func (l *Limiter) Ask(
	ctx context.Context, domain string, entries []*descriptor.RateLimitDescriptor_Entry, hits uint32,
) Decision {
	// Without a deadline a silent peer would block the request.
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
		// If several limits refuse, the longest wait applies.
		if denied && status.Code == ratelimit.RateLimitResponse_OVER_LIMIT {
			decision.RetryAfter = max(decision.RetryAfter, status.DurationUntilReset.AsDuration())
		}
	}
	return decision
}
