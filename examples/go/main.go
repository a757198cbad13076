// Command tollgate-client sends one request to Tollgate; limiter.go is the part for a service.
package main

//go:generate go run github.com/bufbuild/buf/cmd/buf@v1.55.1 generate

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	descriptor "example.com/tollgate-client/gen/envoy/extensions/common/ratelimit/v3"
)

const usage = "tollgate-client --to HOST:PORT --domain D [--hits N] [--timeout MS] [--on-error allow|deny] KEY=VALUE[,KEY=VALUE]"

const (
	exitAllowed = 0
	exitUsage   = 1
	exitDenied  = 2
)

type question struct {
	to, domain string
	entries    []*descriptor.RateLimitDescriptor_Entry
	hits       uint32
	timeout    time.Duration
	onError    OnError
}

func main() {
	asked, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintf(os.Stderr, "%v\nusage: %s\n", err, usage)
		os.Exit(exitUsage)
	}
	limiter, err := NewLimiter(asked.to, asked.timeout, asked.onError)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitUsage)
	}
	defer limiter.Close()

	decision := limiter.Ask(context.Background(), asked.domain, asked.entries, asked.hits)
	fmt.Println(line(decision))
	if decision.NoAnswer != nil {
		fmt.Fprintln(os.Stderr, decision.NoAnswer)
	}
	if !decision.Allowed {
		limiter.Close()
		os.Exit(exitDenied)
	}
}

func line(decision Decision) string {
	verdict := "denied"
	if decision.Allowed {
		verdict = "allowed"
	}
	if decision.NoAnswer != nil {
		return fmt.Sprintf("%s no_answer=%s", verdict, status.Code(decision.NoAnswer))
	}
	remaining := "unlimited"
	if decision.Remaining != nil {
		remaining = fmt.Sprint(*decision.Remaining)
	}
	// Whole seconds as in the header Retry-After, rounded up so that a retry is not too early.
	return fmt.Sprintf("%s remaining=%s retry_after=%.0f", verdict, remaining, math.Ceil(decision.RetryAfter.Seconds()))
}

func parse(arguments []string) (question, error) {
	flags := flag.NewFlagSet("tollgate-client", flag.ContinueOnError)
	flags.SetOutput(&strings.Builder{})
	to := flags.String("to", "", "")
	domain := flags.String("domain", "", "")
	hits := flags.Uint("hits", 1, "")
	timeout := flags.Int("timeout", 250, "")
	onError := flags.String("on-error", string(Allow), "")

	// The package flag stops at the first argument that is not a flag; flags may follow it.
	var descriptors []string
	err := flags.Parse(arguments)
	for err == nil && flags.NArg() > 0 {
		descriptors = append(descriptors, flags.Arg(0))
		err = flags.Parse(flags.Args()[1:])
	}
	switch {
	case err != nil:
		return question{}, err
	case *to == "" || *domain == "" || len(descriptors) != 1:
		return question{}, errors.New("--to, --domain and one descriptor are required")
	case *hits < 1 || *hits > math.MaxUint32 || *timeout < 1:
		return question{}, errors.New("--hits and --timeout are whole numbers from 1")
	case *onError != string(Allow) && *onError != string(Deny):
		return question{}, errors.New("--on-error is allow or deny")
	}
	entries, err := entriesOf(descriptors[0])
	wait := time.Duration(*timeout) * time.Millisecond
	return question{*to, *domain, entries, uint32(*hits), wait, OnError(*onError)}, err
}

func entriesOf(text string) ([]*descriptor.RateLimitDescriptor_Entry, error) {
	var entries []*descriptor.RateLimitDescriptor_Entry
	for _, pair := range strings.Split(text, ",") {
		key, value, found := strings.Cut(pair, "=")
		if !found || key == "" {
			return nil, fmt.Errorf("%q is not KEY=VALUE", pair)
		}
		entries = append(entries, &descriptor.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return entries, nil
}
