package main

import (
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
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
	}{{"ann", 200}, {"ann", 429}, {"bob", 200}, {"", 200}, {"", 429}} {
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

// readmeBlock returns a block in Go of the README.
func readmeBlock(t *testing.T, number int) string {
	t.Helper()
	page, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(page, -1)
	if len(blocks) <= number {
		t.Fatalf("the page has %d blocks in Go", len(blocks))
	}
	return string(blocks[number][1])
}

func TestReadme_FirstProgram_PrintsTheDecision(t *testing.T) {
	const rules = `
domain: edge
descriptors: [{key: remote_address, rate_limit: {unit: hour, requests_per_unit: 1, algorithm: sliding_log}}]
`
	program := readmeBlock(t, 0)
	const options = `"127.0.0.1:8081", tollgate.Options{Timeout: time.Second,`
	if !strings.Contains(program, options) {
		t.Fatal(program)
	}
	// With a timeout that suits a busy machine.
	patient := strconv.Quote(servertest.Start(t, rules).Address) + ", tollgate.Options{Timeout: 20 * time.Second,"
	folder := t.TempDir()
	source, binary := filepath.Join(folder, "main.go"), filepath.Join(folder, "program")
	if err := os.WriteFile(source, []byte(strings.Replace(program, options, patient, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	// A file elsewhere is compiled as one of this module, by its path and not by that of a package.
	if output, err := exec.Command("go", "build", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	for _, want := range []string{
		"^allowed: true, refused for 0s, no answer: <nil>\n$",
		`^allowed: false, refused for \d+m\S+, no answer: <nil>\n$`,
	} {
		if line, err := exec.Command(binary).Output(); err != nil || !regexp.MustCompile(want).Match(line) {
			t.Errorf("%q %v", line, err)
		}
	}
}

func TestReadme_LinesOfMiddleware_AreLinesOfTheExample(t *testing.T) {
	source, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	if block := readmeBlock(t, 1); !strings.Contains(string(source), block) {
		t.Errorf("not in the example:\n%s", block)
	}
}
