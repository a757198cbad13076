// Package servertest starts Tollgate servers for tests.
package servertest

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// Patience bounds each wait of the tests.
const Patience = 20 * time.Second

// Server is a running `tollgate serve`.
type Server struct {
	// Address of the gRPC listener.
	Address string
	input   io.Writer
	output  *bufio.Reader
}

// Start starts a server with these rules, and waits until it is ready. It is stopped at the end of the test.
func Start(t testing.TB, rules string, flags ...string) *Server {
	t.Helper()
	_, file, _, _ := runtime.Caller(0)
	script := filepath.Join(filepath.Dir(file), "..", "..", "..", "test_server.py")
	command := exec.Command("python3", append([]string{script, rules}, flags...)...)
	command.Stderr = os.Stderr
	input, _ := command.StdinPipe()
	output, _ := command.StdoutPipe()
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		input.Close()
		_ = command.Wait()
	})
	server := &Server{input: input, output: bufio.NewReader(output)}
	var addresses struct{ GRPC string }
	if err := json.Unmarshal(server.line(t), &addresses); err != nil {
		t.Fatal(err)
	}
	server.Address = addresses.GRPC
	return server
}

// Kill ends the server at once.
func (s *Server) Kill(t testing.TB) { s.command(t, "kill") }

// Pause stops the process without closing its connections.
func (s *Server) Pause(t testing.TB) { s.command(t, "pause") }

// Resume ends a pause.
func (s *Server) Resume(t testing.TB) { s.command(t, "resume") }

func (s *Server) command(t testing.TB, name string) {
	t.Helper()
	if _, err := fmt.Fprintln(s.input, name); err != nil {
		t.Fatal(err)
	}
	s.line(t)
}

func (s *Server) line(t testing.TB) []byte {
	t.Helper()
	line, err := s.output.ReadBytes('\n')
	if err != nil {
		t.Fatalf("no line of the server: %v", err)
	}
	return line
}

// Eventually waits until the condition holds.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", Patience, what)
		}
	}
}
