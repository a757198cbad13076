// Package httplimit limits HTTP requests by the decisions of a Tollgate server.
package httplimit

import (
	"io"
	"net/http"

	"example.com/tollgate"
	"example.com/tollgate/internal/headers"
)

// Describe says what a request asks for; nil if the request is not limited.
type Describe func(*http.Request) *tollgate.Request

// Middleware returns handlers that limit the requests of another handler.
//
// A denied request gets the response of [Refuse]. Each response to a request with a limit has RateLimit-Limit,
// RateLimit-Remaining and RateLimit-Reset of the tightest one, in whole seconds. If describe returns an invalid request,
// the status is 500.
func Middleware(checker tollgate.Checker, describe Describe) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
			if pass(checker, describe(request), writer, request) {
				next.ServeHTTP(writer, request)
			}
		})
	}
}

// pass says whether the request goes on; otherwise it has responded.
func pass(checker tollgate.Checker, limited *tollgate.Request, writer http.ResponseWriter, request *http.Request) bool {
	if limited == nil {
		return true
	}
	decision, err := checker.Check(request.Context(), *limited)
	if err != nil {
		// To let it pass would open a way around the limit for text that is not UTF-8.
		writer.WriteHeader(http.StatusInternalServerError)
		return false
	}
	if !decision.Allowed {
		Refuse(writer, &decision)
		return false
	}
	addLimit(writer, &decision)
	// An error says that the caller is gone.
	return decision.Wait(request.Context()) == nil
}

// Refuse responds to a denied request: with status 429, and with Retry-After if the same request passes later; with
// status 503, and with Retry-After of a second, if the decision is the default one. The response has the headers of the
// tightest limit. Its body is the reason if the request never passes; otherwise it has none.
func Refuse(writer http.ResponseWriter, decision *tollgate.Decision) {
	code, wait := http.StatusTooManyRequests, decision.RetryAfter
	if decision.Source == tollgate.SourceDefault {
		code, wait = http.StatusServiceUnavailable, headers.NoAnswerWait
	}
	addLimit(writer, decision)
	if wait > 0 {
		writer.Header().Set("Retry-After", headers.Seconds(wait))
	}
	if decision.NeverBecause != "" {
		writer.Header().Set("Content-Type", "text/plain; charset=utf-8")
	}
	writer.WriteHeader(code)
	// An error says that the caller is gone.
	_, _ = io.WriteString(writer, decision.NeverBecause)
}

func addLimit(writer http.ResponseWriter, decision *tollgate.Decision) {
	for _, header := range headers.Limits(decision) {
		writer.Header().Set(header.Name, header.Value)
	}
}
