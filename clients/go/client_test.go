package tollgate_test

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"

	"example.com/tollgate"
	"example.com/tollgate/internal/servertest"
)

// What the vectors cannot say: that the real server and the client understand each other, and connections.

const rules = `
domain: edge
descriptors:
  - key: user
    rate_limit: {name: of-user, unit: hour, requests_per_unit: 3, algorithm: sliding_log}
  - key: group
    rate_limit: {unit: hour, requests_per_unit: 100, algorithm: sliding_log}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 0, algorithm: sliding_log}
  - key: tried
    rate_limit:
      unit: hour
      requests_per_unit: 5
      algorithm: sliding_log
      candidate: {unit: hour, requests_per_unit: 0, algorithm: sliding_log}
  - key: turn
    rate_limit: {unit: minute, requests_per_unit: 60, algorithm: leaky_queue, burst: 5}
`

// Long, so that a busy machine does not look like an outage.
const patient = servertest.Patience

func newClient(t *testing.T, target string, options tollgate.Options) *tollgate.Client {
	t.Helper()
	if options.Timeout == 0 {
		options.Timeout = patient
	}
	client, err := tollgate.New(target, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}

func request(key, value string) tollgate.Request {
	return tollgate.Request{Domain: "edge", Descriptors: []tollgate.Descriptor{tollgate.Describe(key, value)}}
}

// group names a limit of 100.
func group(hits uint64) tollgate.Request {
	named := request("group", "red")
	named.Hits = hits
	return named
}

// check returns a decision that is not the default one.
func check(t *testing.T, checker tollgate.Checker, request tollgate.Request) tollgate.Decision {
	t.Helper()
	decision, err := checker.Check(t.Context(), request)
	if err != nil || decision.NoAnswer != nil {
		t.Error(err, decision.NoAnswer)
	}
	return decision
}

func remaining(t *testing.T, client *tollgate.Client, request tollgate.Request) uint64 {
	t.Helper()
	decision, err := client.Peek(t.Context(), request)
	if err != nil || decision.Tightest() == nil {
		t.Fatalf("%+v %v", decision, err)
	}
	return decision.Tightest().Remaining
}

func TestCheck_UpToItsLimit_SaysAllOfTheLimit(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	three := request("user", "ann")
	three.Hits = 3

	allowed, denied := check(t, client, three), check(t, client, request("user", "ann"))

	want := []tollgate.LimitStatus{{Rule: "of-user", RequestsPerUnit: 3, Unit: tollgate.Hour, ResetAfter: time.Hour}}
	if !allowed.Allowed || allowed.RetryAfter != 0 || !reflect.DeepEqual(allowed.Limits, want) {
		t.Errorf("%+v", allowed)
	}
	limit := denied.Limits[0]
	if denied.Allowed || !limit.Refused || denied.RetryAfter <= 0 || denied.RetryAfter > time.Hour ||
		limit.RetryAfter != denied.RetryAfter || denied.Degraded {
		t.Errorf("%+v", denied)
	}
	if refund, err := client.Refund(t.Context(), three); err != nil || refund.Tightest().Remaining != 3 {
		t.Errorf("%+v %v", refund, err)
	}
}

func TestLimits_InShadowOrWithCandidate_SayWhatWouldBeRefused(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})

	shadow := check(t, client, request("shadow", "any")).Limits[0]
	tried := check(t, client, request("tried", "any")).Limits[0]

	if !shadow.RefusedInShadow || shadow.Refused || shadow.RefusedByCandidate {
		t.Errorf("%+v", shadow)
	}
	if !tried.RefusedByCandidate || tried.Refused || tried.RefusedInShadow {
		t.Errorf("%+v", tried)
	}
}

func TestDelayedRequest_OfAQueue_IsAllowedWithItsDelay(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	check(t, client, request("turn", "a"))
	if delayed := check(t, client, request("turn", "a")); !delayed.Allowed || delayed.Delay <= 0 {
		t.Errorf("%+v", delayed)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&tollgate.Decision{Delay: time.Hour}).Wait(ended); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestConcurrentChecks_OfOneKey_PassExactlyTheLimit(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	var passed atomic.Int32
	var callers sync.WaitGroup
	for range 1000 {
		callers.Go(func() {
			if check(t, client, group(1)).Allowed {
				passed.Add(1)
			}
		})
	}
	callers.Wait()

	if passed.Load() != 100 {
		t.Errorf("%d passed of a limit of 100", passed.Load())
	}
}

func TestText_ThatIsNotUTF8_IsAnError(t *testing.T) {
	client := newClient(t, "127.0.0.1:1", tollgate.Options{})
	named, described := request("user", "\xff"), request("user", "ann")
	described.Domain = "\xff"
	withID := request("user", "ann")
	withID.RequestID = "\xff"
	for _, each := range []tollgate.Request{named, described, withID} {
		var invalid *tollgate.InvalidRequestError
		if _, err := client.Check(t.Context(), each); !errors.As(err, &invalid) {
			t.Error(err)
		}
	}
}

func TestServer_ThatFallsSilent_GetsTheDefaultUntilItAnswers(t *testing.T) {
	server := servertest.Start(t, rules)
	client := newClient(t, server.Address, tollgate.Options{OnNoAnswer: tollgate.Deny, Timeout: 50 * time.Millisecond})
	answers := func() bool {
		decision, err := client.Check(t.Context(), request("free", "ann"))
		return err == nil && decision.Allowed
	}
	servertest.Eventually(t, "an answer", answers)
	server.Pause(t)
	servertest.Eventually(t, "the default", func() bool { return !answers() })
	server.Resume(t)
	servertest.Eventually(t, "an answer again", answers)
}

func TestServer_AfterRestart_IsAskedAgain(t *testing.T) {
	server := servertest.Start(t, rules)
	client := newClient(t, server.Address, tollgate.Options{Timeout: time.Second})
	check(t, client, request("user", "ann"))
	server.Kill(t)
	if decision, err := client.Check(t.Context(), request("user", "ann")); err != nil || decision.NoAnswer == nil {
		t.Fatalf("%+v %v", decision, err)
	}

	servertest.Start(t, rules, "--grpc-listen", server.Address)

	servertest.Eventually(t, "an answer", func() bool {
		decision, err := client.Check(t.Context(), request("user", "ann"))
		return err == nil && decision.NoAnswer == nil
	})
}

func TestChecks_WithTwoAddresses_AreSentToBoth(t *testing.T) {
	addresses := resolver.State{}
	for range 2 {
		address := resolver.Address{Addr: servertest.Start(t, rules).Address}
		addresses.Endpoints = append(addresses.Endpoints, resolver.Endpoint{Addresses: []resolver.Address{address}})
	}
	name := manual.NewBuilderWithScheme("replicas")
	name.InitialState(addresses)
	options := tollgate.Options{DialOptions: []grpc.DialOption{grpc.WithResolvers(name)}, DenyCacheKeys: -1}
	client := newClient(t, "replicas:///tollgate", options)

	// Each server lets three pass.
	passed := 0
	servertest.Eventually(t, "six pass", func() bool {
		if check(t, client, request("user", "ann")).Allowed {
			passed++
		}
		return passed == 6
	})
}

func TestSettlement_OfLessThanReserved_GivesBackTheRest(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	// One request of up to 80 tokens.
	hits := uint64(1)
	both := group(80)
	both.Descriptors = append(both.Descriptors, tollgate.Describe("user", "ann"))
	both.Descriptors[1].Hits = &hits
	reservation, err := client.Reserve(t.Context(), both, tollgate.Terms{})
	if err != nil || !reservation.Decision.Allowed || remaining(t, client, group(0)) != 20 {
		t.Fatalf("%+v %v", reservation, err)
	}
	// The reservation keeps what it was made with, and is settled after the caller has gone away.
	hits, both.Descriptors[0] = 3, tollgate.Describe("group", "blue")
	gone, cancel := context.WithCancel(t.Context())
	cancel()

	settlement, err := reservation.Settle(gone, 30)

	tokens, requests := settlement.Limits[0], settlement.Limits[1]
	if err != nil || tokens.Outcome != tollgate.SettledOpen || tokens.Reserved != 80 || tokens.Remaining != 70 ||
		tokens.ResetAfter <= 0 || requests.Descriptor != 1 || requests.Remaining != 2 || settlement.Unknown {
		t.Errorf("%+v %v", settlement, err)
	}
	if repeated, err := reservation.Settle(t.Context(), 99); err != nil || !reflect.DeepEqual(repeated, settlement) {
		t.Errorf("%+v is not the first answer: %v", repeated, err)
	}
}

func TestChecks_OfCanceledCaller_AreNotSent(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		if decision, err := client.Check(gone, group(1)); !errors.Is(err, context.Canceled) {
			t.Errorf("%+v %v", decision, err)
		}
	}
	if left := remaining(t, client, group(0)); left != 100 {
		t.Errorf("%d are left", left)
	}
}

func TestReservation_ThatExpires_IsReleasedOrCharged(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	settled := func(onExpiry tollgate.OnExpiry) tollgate.SettledLimit {
		terms := tollgate.Terms{TTL: time.Millisecond, OnExpiry: onExpiry}
		reservation, err := client.Reserve(t.Context(), request("group", onExpiry.String()), terms)
		if err != nil {
			t.Fatal(err)
		}
		var settlement tollgate.Settlement
		time.Sleep(100 * time.Millisecond)
		if settlement, err = reservation.Settle(t.Context(), 30); err != nil {
			t.Fatal(err)
		}
		return settlement.Limits[0]
	}
	if limit := settled(tollgate.Release); limit.Outcome != tollgate.SettledReleased || limit.Remaining != 70 {
		t.Errorf("%+v", limit)
	}
	if limit := settled(tollgate.Charge); limit.Outcome != tollgate.SettledCharged || limit.Remaining != 70 {
		t.Errorf("%+v", limit)
	}
}

func TestConcurrentSlices_OfOneKey_PassWhatIsCharged(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{DenyCacheKeys: -1})
	var each [2]*tollgate.PrepaidSlices
	for i := range each {
		var err error
		if each[i], err = tollgate.NewPrepaidSlices(client, tollgate.SliceOptions{Hits: 10}); err != nil {
			t.Fatal(err)
		}
	}
	var passed, prepaid atomic.Uint64
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for range 30 {
				decision := check(t, each[i%2], group(1))
				if decision.Allowed {
					passed.Add(1)
				}
				if decision.Source == tollgate.SourcePrepaid {
					prepaid.Add(1)
				}
			}
		})
	}
	callers.Wait()
	each[0].Close()
	each[1].Close()

	if left := remaining(t, client, group(0)); prepaid.Load() == 0 || passed.Load() > 100 || left != 100-passed.Load() {
		t.Errorf("%d passed of a limit of 100, %d prepaid, %d are left", passed.Load(), prepaid.Load(), left)
	}
	if check(t, each[0], group(0)).Source == tollgate.SourcePrepaid {
		t.Error("prepaid after the close")
	}
}

func TestSlice_ThatIsNotUsed_IsGivenBack(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	slices, err := tollgate.NewPrepaidSlices(client, tollgate.SliceOptions{Hits: 20, TTL: 400 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer slices.Close()
	check(t, slices, group(1))

	servertest.Eventually(t, "a slice is held", func() bool { return remaining(t, client, group(0)) == 79 })
	servertest.Eventually(t, "it is given back", func() bool { return remaining(t, client, group(0)) == 99 })
}
