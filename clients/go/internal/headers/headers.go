// Package headers says in headers what a decision says, for every kind of middleware.
package headers

import (
	"strconv"
	"time"

	"example.com/tollgate"
)

// NoAnswerWait is the time after which a request may pass that is denied because the server gave no answer.
const NoAnswerWait = time.Second

// Header is a name and its value.
type Header struct {
	Name, Value string
}

// Limits returns the headers of every response to a request with a limit: the tightest one, and what is left of it.
func Limits(decision *tollgate.Decision) []Header {
	limit := decision.Tightest()
	if limit == nil {
		return nil
	}
	headers := []Header{
		{"RateLimit-Limit", strconv.FormatUint(limit.RequestsPerUnit, 10)},
		{"RateLimit-Remaining", strconv.FormatUint(limit.Remaining, 10)},
	}
	if decision.NeverBecause != "" {
		// The request waits for nothing.
		return headers
	}
	return append(headers, Header{"RateLimit-Reset", Seconds(limit.ResetAfter)})
}

// Reason says in one line why a request is denied.
func Reason(decision *tollgate.Decision) string {
	switch {
	case decision.Source == tollgate.SourceDefault:
		return "the rate limiter gave no answer"
	case decision.NeverBecause != "":
		return decision.NeverBecause
	default:
		return "rate limit exceeded"
	}
}

// Seconds are whole, rounded up: a caller that waits for them is not refused for waiting too short.
func Seconds(wait time.Duration) string {
	return strconv.FormatInt(int64((wait+time.Second-1)/time.Second), 10)
}
