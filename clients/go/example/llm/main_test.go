package main

import (
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

// example is the running program, and the client that it uses.
type example struct {
	*testing.T
	url    string
	client *tollgate.Client
}

func start(t *testing.T, pace time.Duration) *example {
	t.Helper()
	rules, err := os.ReadFile("../../../llm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	options := tollgate.Options{Timeout: servertest.Patience, OnNoAnswer: tollgate.Deny}
	client, err := tollgate.New(servertest.Start(t, string(rules)).Address, options)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer((&service{client, pace}).handler())
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
func (e *example) chat(maxTokens string) *http.Response {
	e.Helper()
	request, err := http.NewRequestWithContext(e.Context(), http.MethodGet, e.url+"/chat?max_tokens="+maxTokens, nil)
	if err != nil {
		e.Fatal(err)
	}
	request.Header.Set("user", "ann")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { response.Body.Close() })
	return response
}

// used are the tokens of the month and the calls in flight.
func (e *example) used() [2]uint64 {
	e.Helper()
	decision, err := e.client.Peek(e.Context(), tollgate.Request{
		Domain:      "models",
		Descriptors: []tollgate.Descriptor{tollgate.Describe("tokens_of_month", "ann"), tollgate.Describe("in_flight", "ann")},
	})
	if err != nil || len(decision.Limits) != 2 {
		e.Fatal(decision, err)
	}
	return [2]uint64{1_000_000 - decision.Limits[0].Remaining, 4 - decision.Limits[1].Remaining}
}

func (e *example) eventuallyUses(tokens, inFlight uint64) {
	e.Helper()
	servertest.Eventually(e, "the limits are used", func() bool { return e.used() == [2]uint64{tokens, inFlight} })
}

func TestAnswer_ShorterThanReserved_IsChargedAsSent(t *testing.T) {
	example := start(t, 0)

	text, err := io.ReadAll(example.chat("500").Body)

	if err != nil || string(text) != strings.Repeat("Limits are kept exactly.\n", 3) {
		t.Errorf("%q %v", text, err)
	}
	example.eventuallyUses(18, 0)
}

func TestAnswer_WhoseCallerGoesAway_IsChargedAsSent(t *testing.T) {
	// The second token does not come.
	example := start(t, time.Hour)
	response := example.chat("6000")
	if used := example.used(); used != [2]uint64{6000, 1} {
		t.Errorf("%v are held while the answer goes on", used)
	}
	refused := example.chat("6000")
	wait, err := strconv.Atoi(refused.Header.Get("Retry-After"))
	if refused.StatusCode != http.StatusTooManyRequests || err != nil || wait < 1 || wait > 12 {
		t.Error(refused.Status, refused.Header)
	}

	response.Body.Close()

	example.eventuallyUses(1, 0)
}

func TestCall_ThatNeverPasses_IsRefusedAndHoldsNothing(t *testing.T) {
	example := start(t, 0)

	never := example.chat("10001")

	if never.StatusCode != http.StatusTooManyRequests || never.Header.Get("Retry-After") != "" {
		t.Error(never.Status, never.Header)
	}
	example.eventuallyUses(0, 0)
}

func TestCall_WithInvalidTokens_IsABadRequest(t *testing.T) {
	example := start(t, 0)
	for _, tokens := range []string{"", "0", "-1", "x"} {
		if response := example.chat(tokens); response.StatusCode != http.StatusBadRequest {
			t.Error(tokens, response.Status)
		}
	}
}
