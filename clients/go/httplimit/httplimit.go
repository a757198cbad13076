// Package httplimit limits HTTP requests by the decisions of a Tollgate server.
package httplimit

import (
	"net/http"

	"example.com/tollgate"
	"example.com/tollgate/internal/headers"
)

// Describe says what a request asks for; nil if the request is not limited.
type Describe func(*http.Request) *tollgate.Request

// Middleware returns handlers that limit the requests of another handler.
//
// A denied request gets status 429 with Retry-After, if the same request passes later. Each response to a request with
// a limit has RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset of the tightest one. Times are in whole seconds.
// If describe returns an invalid request, the status is 500.
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
	for _, header := range headers.Limits(&decision) {
		writer.Header().Set(header.Name, header.Value)
	}
	if !decision.Allowed {
		if decision.RetryAfter > 0 {
			writer.Header().Set("Retry-After", headers.Seconds(decision.RetryAfter))
		}
		writer.WriteHeader(http.StatusTooManyRequests)
		return false
	}
	// An error says that the caller is gone.
	return decision.Wait(request.Context()) == nil
}
