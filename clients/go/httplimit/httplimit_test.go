package httplimit_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"example.com/tollgate"
	"example.com/tollgate/httplimit"
	"example.com/tollgate/internal/servertest"
)

const rules = `
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 2, algorithm: sliding_log}
  - key: all
    rate_limit: {unit: hour, requests_per_unit: 1000000, algorithm: fixed_window}
  - key: none
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: turn
    rate_limit: {unit: second, requests_per_unit: 10, algorithm: leaky_queue, burst: 5}
`

// limited starts an HTTP server, limited by Tollgate. It limits the header "user" by the key of the path.
func limited(t *testing.T, target string, options tollgate.Options) string {
	t.Helper()
	client, err := tollgate.New(target, options)
	if err != nil {
		t.Fatal(err)
	}
	limit := httplimit.Middleware(client, func(request *http.Request) *tollgate.Request {
		user := request.Header.Get("user")
		if user == "" {
			return nil
		}
		descriptor := tollgate.Describe(request.URL.Path[1:], user)
		return &tollgate.Request{Domain: "edge", Descriptors: []tollgate.Descriptor{descriptor}}
	})
	server := httptest.NewServer(limit(http.HandlerFunc(func(writer http.ResponseWriter, _ *http.Request) {
		// An error says that the client is gone.
		_, _ = io.WriteString(writer, "hello")
	})))
	t.Cleanup(func() {
		server.Close()
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return server.URL
}

// get returns the response and its body.
func get(t *testing.T, url, user string) (*http.Response, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if user != "" {
		request.Header.Set("user", user)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

// prepaid counts the checks that slices have decided.
type prepaid struct{ atomic.Int64 }

func (p *prepaid) Checked(outcome tollgate.Outcome, _ time.Duration) {
	if outcome == tollgate.Prepaid {
		p.Add(1)
	}
}
func (*prepaid) Sent(int)    {}
func (*prepaid) Lost(uint64) {}

func TestRequests_WithSlices_ArePrepaid(t *testing.T) {
	counted := &prepaid{}
	client, err := tollgate.New(servertest.Start(t, rules).Address, tollgate.Options{Metrics: counted})
	if err != nil {
		t.Fatal(err)
	}
	slices, err := tollgate.NewPrepaidSlices(client, tollgate.SliceOptions{Hits: 1000, TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	limit := httplimit.Middleware(slices, func(*http.Request) *tollgate.Request {
		return &tollgate.Request{Domain: "edge", Descriptors: []tollgate.Descriptor{tollgate.Describe("all", "any")}}
	})
	server := httptest.NewServer(limit(http.NotFoundHandler()))
	t.Cleanup(func() {
		server.Close()
		slices.Close()
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})

	servertest.Eventually(t, "a request is prepaid", func() bool {
		response, _ := get(t, server.URL, "")
		return response.StatusCode == http.StatusNotFound && counted.Load() > 0
	})
}

func TestRequest_OverItsLimit_IsRefusedWithHeaders(t *testing.T) {
	url := limited(t, servertest.Start(t, rules).Address, tollgate.Options{Timeout: servertest.Patience})
	for _, remaining := range []string{"1", "0"} {
		response, body := get(t, url+"/user", "ann")
		header := response.Header
		if response.StatusCode != http.StatusOK || body != "hello" || header.Get("Retry-After") != "" ||
			header.Get("RateLimit-Limit") != "2" || header.Get("RateLimit-Remaining") != remaining ||
			header.Get("RateLimit-Reset") != "3600" {
			t.Errorf("%d %v", response.StatusCode, header)
		}
	}

	response, body := get(t, url+"/user", "ann")

	header := response.Header
	wait, err := strconv.Atoi(header.Get("Retry-After"))
	if err != nil || wait < 3500 || wait > 3600 || header.Get("RateLimit-Reset") != header.Get("Retry-After") {
		t.Errorf("%v", header)
	}
	if response.StatusCode != http.StatusTooManyRequests || body == "hello" || header.Get("RateLimit-Remaining") != "0" {
		t.Errorf("%d %s %v", response.StatusCode, body, header)
	}
	if other, _ := get(t, url+"/user", "bob"); other.StatusCode != http.StatusOK {
		t.Errorf("another user: %d", other.StatusCode)
	}
}

func TestRequest_WithoutDescription_IsNotLimited(t *testing.T) {
	url := limited(t, servertest.Start(t, rules).Address, tollgate.Options{Timeout: servertest.Patience})
	for range 3 {
		response, body := get(t, url+"/user", "")
		if response.StatusCode != http.StatusOK || body != "hello" || response.Header.Get("RateLimit-Limit") != "" {
			t.Errorf("%d %v", response.StatusCode, response.Header)
		}
	}
}

func TestRequest_ThatNeverPasses_HasNoRetryAfter(t *testing.T) {
	url := limited(t, servertest.Start(t, rules).Address, tollgate.Options{Timeout: servertest.Patience})
	response, _ := get(t, url+"/none", "ann")

	header := response.Header
	if response.StatusCode != http.StatusTooManyRequests || len(header["Retry-After"]) > 0 ||
		header.Get("RateLimit-Limit") != "0" {
		t.Errorf("%d %v", response.StatusCode, header)
	}
}

func TestDelayedRequest_OfAQueue_WaitsForItsTurn(t *testing.T) {
	url := limited(t, servertest.Start(t, rules).Address, tollgate.Options{Timeout: servertest.Patience})
	begin := time.Now()
	for range 3 {
		if response, _ := get(t, url+"/turn", "ann"); response.StatusCode != http.StatusOK {
			t.Errorf("%d", response.StatusCode)
		}
	}

	// The first goes at once, and one each 100 ms after it.
	if elapsed := time.Since(begin); elapsed < 200*time.Millisecond {
		t.Errorf("after %s", elapsed)
	}
}

func TestInvalidDescription_OfARequest_IsAnErrorOfTheServer(t *testing.T) {
	url := limited(t, servertest.Start(t, rules).Address, tollgate.Options{Timeout: servertest.Patience})
	response, body := get(t, url+"/user", "\xff")

	if response.StatusCode != http.StatusInternalServerError || body == "hello" {
		t.Errorf("%d %s", response.StatusCode, body)
	}
}

func TestRequest_WithoutTollgate_GetsTheDefault(t *testing.T) {
	for fallback, want := range map[tollgate.Default]int{
		tollgate.Allow: http.StatusOK, tollgate.Deny: http.StatusTooManyRequests,
	} {
		// Nothing listens on port 1.
		url := limited(t, "127.0.0.1:1", tollgate.Options{OnNoAnswer: fallback})
		response, _ := get(t, url+"/user", "ann")
		if response.StatusCode != want || len(response.Header["Retry-After"]) > 0 {
			t.Errorf("%d %v", response.StatusCode, response.Header)
		}
	}
}
