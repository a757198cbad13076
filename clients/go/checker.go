package tollgate

import "context"

// Checker decides requests: a [Client], or [PrepaidSlices] of one. Middleware takes either.
type Checker interface {
	// Check charges the hits of a request if it is allowed.
	Check(ctx context.Context, request Request) (Decision, error)
}
