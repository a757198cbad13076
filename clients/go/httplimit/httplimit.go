// Package httplimit limits HTTP requests by the decisions of a Tollgate server.
package httplimit

import (
	"encoding/json"
	"net/http"
	"strings"

	"example.com/tollgate"
	"example.com/tollgate/internal/headers"
)

const problemType = "application/problem+json"

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
		Refuse(writer, request, &decision)
		return false
	}
	addLimit(writer, &decision)
	// An error says that the caller is gone.
	return decision.Wait(request.Context()) == nil
}

// Refuse responds to a denied request: with status 429, and with Retry-After if the same request passes later; with
// status 503, and with Retry-After of a second, if the decision is the default one. The response has the headers of the
// tightest limit. Its body says why, as a text, or as a problem (RFC 9457) if the request accepts one.
func Refuse(writer http.ResponseWriter, request *http.Request, decision *tollgate.Decision) {
	code, wait := http.StatusTooManyRequests, decision.RetryAfter
	if decision.Source == tollgate.SourceDefault {
		code, wait = http.StatusServiceUnavailable, headers.NoAnswerWait
	}
	addLimit(writer, decision)
	if wait > 0 {
		writer.Header().Set("Retry-After", headers.Seconds(wait))
	}
	contentType, body := refusalBody(request, code, headers.Reason(decision))
	writer.Header().Set("Content-Type", contentType)
	writer.WriteHeader(code)
	// An error says that the caller is gone.
	_, _ = writer.Write(body)
}

// problem is a problem of RFC 9457.
type problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

func refusalBody(request *http.Request, code int, reason string) (contentType string, body []byte) {
	for _, accepted := range request.Header.Values("Accept") {
		if strings.Contains(strings.ToLower(accepted), problemType) {
			// Text and a number can always be encoded.
			body, _ = json.Marshal(problem{http.StatusText(code), code, reason})
			return problemType, body
		}
	}
	return "text/plain; charset=utf-8", []byte(reason)
}

func addLimit(writer http.ResponseWriter, decision *tollgate.Decision) {
	for _, header := range headers.Limits(decision) {
		writer.Header().Set(header.Name, header.Value)
	}
}
