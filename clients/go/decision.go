package tollgate

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "example.com/tollgate/gen/tollgate/v1"
)

// Decision is what to do with a request.
type Decision struct {
	Allowed bool
	// Delay is the time that an allowed request waits before it goes on; see [Decision.Wait].
	Delay time.Duration
	// RetryAfter is the time until a denied request would pass. It is 0 if it never would, or without an answer.
	RetryAfter time.Duration
	// NeverBecause says why a denied request would never pass, with the largest amount that can. It is empty if it may pass
	// later.
	NeverBecause string
	// Limits are those that apply, in the order of the descriptors.
	Limits []LimitStatus
	// Degraded says whether the server decided a limit without the owner of its counter.
	Degraded bool
	// Source is what decided.
	Source Source
	// NoAnswer is the reason why the server gave no answer. If it is not nil, [Options.OnNoAnswer] has decided.
	NoAnswer *NoAnswerError
}

// Source is what made a decision.
type Source int

const (
	// SourceServer is the server.
	SourceServer Source = iota
	// SourceDenyCache: the server refused the same request before.
	SourceDenyCache
	// SourcePrepaid is a slice of the limit.
	SourcePrepaid
	// SourceDefault is [Options.OnNoAnswer], because the server gave no answer.
	SourceDefault
)

// String returns the name of the source.
func (s Source) String() string {
	return [...]string{"server", "deny_cache", "prepaid", "default"}[s]
}

// NoAnswerError says why the server gave no answer. It may have done what it was asked.
type NoAnswerError struct {
	Code    codes.Code
	Message string
}

func (e *NoAnswerError) Error() string {
	return fmt.Sprintf("tollgate: no answer: %s: %s", e.Code, e.Message)
}

// LimitStatus is one limit of a request.
type LimitStatus struct {
	// Descriptor is the index of the descriptor in the request.
	Descriptor int
	// Rule is the name of the rule, or its path. It is empty for a limit that the caller sent.
	Rule            string
	RequestsPerUnit uint64
	Unit            Unit
	Remaining       uint64
	// ResetAfter is the time until the limit is unused. If the limit refuses: until the same hits pass; 0 if they never do.
	ResetAfter time.Duration
	// RetryAfter is the time until the same hits pass, if the limit refuses; 0 if they never do.
	RetryAfter time.Duration
	// Refused says whether the limit refuses the request. In shadow mode the request may be allowed nevertheless.
	Refused bool
	// RefusedInShadow says whether it would refuse the request, but its rule is in shadow mode.
	RefusedInShadow bool
	// RefusedByCandidate says whether the candidate of its rule would refuse the request.
	RefusedByCandidate bool
	// Degraded says whether the server decided it without the owner of its counter.
	Degraded bool
}

// Tightest returns the limit to report in headers: a limit that denies the request comes first, then the one with the
// fewest remaining hits, then, of those that deny, the one with the longest wait. It is nil if no limit applies.
func (d *Decision) Tightest() *LimitStatus {
	var best *LimitStatus
	for i := range d.Limits {
		if next := &d.Limits[i]; best == nil || d.tighter(next, best) {
			best = next
		}
	}
	return best
}

func (d *Decision) tighter(limit, other *LimitStatus) bool {
	denies, otherDenies := !d.Allowed && limit.Refused, !d.Allowed && other.Refused
	switch {
	case denies != otherDenies:
		return denies
	case limit.Remaining != other.Remaining:
		return limit.Remaining < other.Remaining
	default:
		return denies && limit.ResetAfter > other.ResetAfter
	}
}

// Wait waits for the delay of the decision. It returns early, with an error, if the context ends.
func (d *Decision) Wait(ctx context.Context) error {
	if d.Delay <= 0 {
		return nil
	}
	timer := time.NewTimer(d.Delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// after returns the decision of this source, which repeats that of the server when this time has passed.
func (d Decision) after(source Source, elapsed time.Duration) Decision {
	d.Source = source
	d.RetryAfter = max(d.RetryAfter-elapsed, 0)
	limits := make([]LimitStatus, len(d.Limits))
	for i, limit := range d.Limits {
		limit.ResetAfter = max(limit.ResetAfter-elapsed, 0)
		limit.RetryAfter = max(limit.RetryAfter-elapsed, 0)
		limits[i] = limit
	}
	d.Limits = limits
	return d
}

// decisionOf translates an answer. An answer without a verdict is an error.
func decisionOf(answer *pb.Answer) (Decision, error) {
	if answer.GetVerdict() == pb.Answer_UNDECIDED {
		if answer.GetError() == nil {
			return Decision{}, status.Error(codes.Internal, "the server answered without a verdict")
		}
		return Decision{}, status.FromProto(answer.GetError()).Err()
	}
	decision := Decision{
		Allowed:      answer.GetVerdict() == pb.Answer_ALLOWED,
		Delay:        answer.GetDelay().AsDuration(),
		RetryAfter:   answer.GetRetryAfter().AsDuration(),
		NeverBecause: answer.GetNeverBecause(),
		Degraded:     answer.GetDegraded(),
		Limits:       make([]LimitStatus, len(answer.GetLimits())),
	}
	for i, limit := range answer.GetLimits() {
		decision.Limits[i] = LimitStatus{
			Descriptor:         int(limit.GetDescriptorIndex()),
			Rule:               limit.GetRule(),
			RequestsPerUnit:    limit.GetRequestsPerUnit(),
			Unit:               limit.GetUnit(),
			Remaining:          limit.GetRemaining(),
			ResetAfter:         limit.GetResetAfter().AsDuration(),
			RetryAfter:         limit.GetRetryAfter().AsDuration(),
			Refused:            limit.GetRefused(),
			RefusedInShadow:    limit.GetRefusedInShadow(),
			RefusedByCandidate: limit.GetRefusedByCandidate(),
			Degraded:           limit.GetDegraded(),
		}
	}
	return decision, nil
}
