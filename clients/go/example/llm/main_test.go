package main

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"example.com/tollgate"
	"example.com/tollgate/internal/servertest"
)

// By the hour, so that nothing comes back during the test.
const rules = `
domain: models
descriptors:
  - key: requests
    rate_limit: {unit: hour, requests_per_unit: 2, algorithm: sliding_log}
  - key: tokens
    rate_limit: {unit: hour, requests_per_unit: 1000, algorithm: sliding_log}
`

// example is the running program, and the client that it uses.
type example struct {
	t      *testing.T
	url    string
	client *tollgate.Client
}

func start(t *testing.T, rules string, pace time.Duration) *example {
	t.Helper()
	options := tollgate.Options{Timeout: servertest.Patience, OnNoAnswer: tollgate.Deny}
	client, err := tollgate.New(servertest.Start(t, rules).Address, options)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer((&service{client, model{pace}}).handler())
	t.Cleanup(func() {
		// Waits for the settlements.
		server.Close()
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return &example{t, server.URL, client}
}

// chat returns the response when its header has come.
func (e *example) chat(query string) *http.Response {
	e.t.Helper()
	request, err := http.NewRequestWithContext(e.t.Context(), http.MethodGet, e.url+"/chat?"+query, nil)
	if err != nil {
		e.t.Fatal(err)
	}
	request.Header.Set("user", "ann")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { response.Body.Close() })
	return response
}

// text returns the whole answer.
func (e *example) text(query string) string {
	e.t.Helper()
	response := e.chat(query)
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		e.t.Fatal(response.Status, err)
	}
	return string(text)
}

func (e *example) remaining(key string) uint64 {
	e.t.Helper()
	decision, err := e.client.Peek(e.t.Context(), tollgate.Request{
		Domain: "models", Descriptors: []tollgate.Descriptor{tollgate.Describe(key, "ann")},
	})
	if err != nil || decision.Tightest() == nil {
		e.t.Fatal(decision, err)
	}
	return decision.Tightest().Remaining
}

func (e *example) eventuallyRemain(key string, hits uint64) {
	e.t.Helper()
	servertest.Eventually(e.t, fmt.Sprintf("%d %s are left", hits, key), func() bool { return e.remaining(key) == hits })
}

func TestAnswer_ShorterThanReserved_IsChargedAsSent(t *testing.T) {
	example := start(t, rules, 0)

	text := example.text("sentences=2&max_tokens=500")

	if text != strings.Repeat("Limits are kept exactly.\n", 2) {
		t.Errorf("%q", text)
	}
	example.eventuallyRemain("tokens", 1000-12)
	example.eventuallyRemain("requests", 1)
}

func TestAnswer_AtItsMostTokens_Ends(t *testing.T) {
	example := start(t, rules, 0)

	if text := example.text("max_tokens=3"); text != "Limits are kept" {
		t.Errorf("%q", text)
	}
	example.eventuallyRemain("tokens", 1000-3)
}

func TestAnswer_WhoseCallerGoesAway_IsChargedAsSent(t *testing.T) {
	// The second token does not come.
	example := start(t, rules, time.Hour)
	response := example.chat("max_tokens=600")
	if token, err := bufio.NewReader(response.Body).Peek(len("Limits")); string(token) != "Limits" {
		t.Fatalf("%q %v", token, err)
	}
	if left := example.remaining("tokens"); left != 400 {
		t.Errorf("%d are left while the answer goes on", left)
	}
	if another := example.chat("max_tokens=600"); another.StatusCode != http.StatusTooManyRequests {
		t.Error(another.Status)
	}

	response.Body.Close()

	example.eventuallyRemain("tokens", 1000-1)
	example.eventuallyRemain("requests", 1)
}

func TestCall_OverALimit_IsRefused(t *testing.T) {
	example := start(t, rules, 0)
	if never := example.chat("max_tokens=1001"); never.StatusCode != 429 || never.Header.Get("Retry-After") != "" {
		t.Error(never.Status, never.Header)
	}
	example.eventuallyRemain("requests", 2)
	example.text("max_tokens=1")
	example.text("max_tokens=1")

	refused := example.chat("max_tokens=1")

	wait, err := strconv.Atoi(refused.Header.Get("Retry-After"))
	if refused.StatusCode != http.StatusTooManyRequests || err != nil || wait <= 3000 || wait > 3600 {
		t.Error(refused.Status, refused.Header)
	}
}

func TestCall_WithInvalidParameters_IsABadRequest(t *testing.T) {
	example := start(t, rules, 0)
	for _, query := range []string{"max_tokens=0", "max_tokens=x", "sentences=-1", "sentences=1000001"} {
		if response := example.chat(query); response.StatusCode != http.StatusBadRequest {
			t.Error(query, response.Status)
		}
	}
}

func TestRules_OfTheExample_LimitIt(t *testing.T) {
	rules, err := os.ReadFile("rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	example := start(t, string(rules), 0)

	example.text("max_tokens=3")

	if refused := example.chat("max_tokens=10001"); refused.StatusCode != http.StatusTooManyRequests {
		t.Error(refused.Status)
	}
}
