package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"

	"example.com/tollgate"
	"example.com/tollgate/internal/servertest"
)

const rules = `
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}
`

func TestExample_ForEachUser_KeepsTheLimit(t *testing.T) {
	options := tollgate.Options{Timeout: servertest.Patience}
	client, err := tollgate.New(servertest.Start(t, rules).Address, options)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	handler := handler(client)
	for _, each := range []struct {
		user string
		want int
	}{{"ann", 200}, {"ann", 429}, {"bob", 200}, {"", 200}, {"", 200}} {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/hello", nil)
		if each.user != "" {
			request.Header.Set("user", each.user)
		}
		response := httptest.NewRecorder()
		handler.ServeHTTP(response, request)
		if response.Code != each.want {
			t.Errorf("%q: %d", each.user, response.Code)
		}
	}
}

func TestReadme_FirstGoBlock_HasLinesOfTheExample(t *testing.T) {
	page, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(page)
	if block == nil {
		t.Fatal("the page has no block in Go")
	}
	for line := range strings.Lines(string(block[1])) {
		if line := strings.TrimSpace(line); !strings.Contains(string(source), line) {
			t.Errorf("not in the example: %s", line)
		}
	}
}
