// Package servertest starts Tollgate servers for tests.
package servertest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Patience bounds each wait of the tests.
const Patience = 20 * time.Second

// Server is a running `tollgate serve`.
type Server struct {
	// Address of the gRPC listener.
	Address string
	process *os.Process
	exited  chan struct{}
}

// Start starts a server with these rules, and waits until it is ready. It is stopped at the end of the test.
func Start(t testing.TB, rules string, flags ...string) *Server {
	t.Helper()
	return StartAt(t, "127.0.0.1:0", rules, flags...)
}

// StartAt starts a server with this address of the gRPC listener.
func StartAt(t testing.TB, address, rules string, flags ...string) *Server {
	t.Helper()
	program := os.Getenv("TOLLGATE")
	if program == "" {
		t.Fatal("the variable TOLLGATE is not set: set it to the path of the program tollgate")
	}
	path := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(path, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	free := "127.0.0.1:0"
	arguments := append([]string{
		"serve", "--rules", path, "--grpc-listen", address, "--http-listen", free, "--admin-listen", free,
		"--metrics-listen", free, "--log-format", "json", "--drain-delay", "0s",
	}, flags...)
	command := exec.Command(program, arguments...)
	command.Env = []string{"PATH=" + os.Getenv("PATH")}
	log := &watchedLog{listeners: make(chan map[string]string, 1)}
	command.Stdout, command.Stderr = log, log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	server := &Server{process: command.Process, exited: make(chan struct{})}
	go func() {
		// The exit code of a server that a test stopped says nothing.
		_ = command.Wait()
		close(server.exited)
	}()
	t.Cleanup(server.Kill)
	select {
	case listeners := <-log.listeners:
		server.Address = listeners["grpc"]
		Eventually(t, "the server is ready", func() bool { return ready(listeners["http"]) })
	case <-server.exited:
		t.Fatalf("the server exited:\n%s", log)
	case <-time.After(Patience):
		t.Fatalf("the server does not listen:\n%s", log)
	}
	return server
}

// Kill ends the server at once.
func (s *Server) Kill() {
	// An error says that it has exited.
	_ = s.process.Kill()
	<-s.exited
}

// Pause stops the process without closing its connections.
func (s *Server) Pause(t testing.TB) {
	t.Helper()
	if err := s.process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
}

// Resume ends a pause.
func (s *Server) Resume(t testing.TB) {
	t.Helper()
	if err := s.process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
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

func ready(address string) bool {
	response, err := http.Get(fmt.Sprintf("http://%s/readyz", address))
	if err != nil {
		return false
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return err == nil && response.StatusCode == http.StatusOK
}

// watchedLog collects the log, and sends the addresses of all listeners once it has them.
type watchedLog struct {
	mutex     sync.Mutex
	text      bytes.Buffer
	listeners chan map[string]string
	sent      bool
}

func (l *watchedLog) Write(data []byte) (int, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.text.Write(data)
	if l.sent {
		return len(data), nil
	}
	found := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(l.text.Bytes())); lines.Scan(); {
		var event struct{ Message, Listener, Address string }
		if json.Unmarshal(lines.Bytes(), &event) == nil && event.Message == "listening" {
			found[event.Listener] = event.Address
		}
	}
	if len(found) == 4 {
		l.listeners <- found
		l.sent = true
	}
	return len(data), nil
}

func (l *watchedLog) String() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.text.String()
}
