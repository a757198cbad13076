package tollgate_test

import (
	"context"
	"errors"
	"net"
	"slices"
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

const rules = `
domain: edge
descriptors:
  - key: user
    rate_limit: {name: of-user, unit: hour, requests_per_unit: 3, algorithm: sliding_log}
  - key: group
    rate_limit: {unit: hour, requests_per_unit: 100, algorithm: sliding_log}
  - key: second
    rate_limit: {unit: second, requests_per_unit: 1000000, algorithm: fixed_window}
  - key: fast
    rate_limit: {unit: second, requests_per_unit: 100000, algorithm: token_bucket}
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

// counts are what a client has counted.
type counts struct {
	mutex    sync.Mutex
	outcomes map[tollgate.Outcome]int
	batches  []int
	lost     uint64
}

func (c *counts) Checked(outcome tollgate.Outcome, latency time.Duration) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.outcomes == nil {
		c.outcomes = map[tollgate.Outcome]int{}
	}
	c.outcomes[outcome]++
}

func (c *counts) Sent(batch int) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.batches = append(c.batches, batch)
}

func (c *counts) Lost(hits uint64) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.lost += hits
}

func (c *counts) lostHits() uint64 {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.lost
}

func (c *counts) of(outcome tollgate.Outcome) int {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.outcomes[outcome]
}

func (c *counts) sent() []int {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return slices.Clone(c.batches)
}

// gate holds all calls to the server until it is opened.
type gate struct {
	opened  chan struct{}
	waiting atomic.Int32
}

func (g *gate) option() grpc.DialOption {
	return grpc.WithUnaryInterceptor(func(
		ctx context.Context, method string, request, reply any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker,
		options ...grpc.CallOption,
	) error {
		g.waiting.Add(1)
		<-g.opened
		return invoke(ctx, method, request, reply, connection, options...)
	})
}

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

// check returns a decision by the server or the deny cache.
func check(t *testing.T, client *tollgate.Client, request tollgate.Request) tollgate.Decision {
	t.Helper()
	decision := checkAside(t, client, request)
	if t.Failed() {
		t.FailNow()
	}
	return decision
}

// checkAside is for goroutines, which must not end the test.
func checkAside(t *testing.T, client *tollgate.Client, request tollgate.Request) tollgate.Decision {
	t.Helper()
	decision, err := client.Check(t.Context(), request)
	if err != nil || decision.NoAnswer != nil {
		t.Error(err, decision.NoAnswer)
	}
	return decision
}

func TestCheck_UpToItsLimit_SaysAllOfTheLimit(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	three := request("user", "ann")
	three.Hits = 3

	allowed := check(t, client, three)
	denied := check(t, client, request("user", "ann"))

	want := tollgate.LimitStatus{Rule: "of-user", RequestsPerUnit: 3, Unit: tollgate.Hour, ResetAfter: time.Hour}
	if !allowed.Allowed || allowed.RetryAfter != 0 || !slices.Equal(allowed.Limits, []tollgate.LimitStatus{want}) {
		t.Errorf("%+v", allowed)
	}
	limit := denied.Limits[0]
	if denied.Allowed || !limit.Refused || denied.RetryAfter <= 0 || denied.RetryAfter > time.Hour ||
		limit.RetryAfter != denied.RetryAfter || denied.Local || denied.Degraded {
		t.Errorf("%+v", denied)
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

func TestRepeatedCheck_WithRequestID_CountsOnce(t *testing.T) {
	counted := &counts{}
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{Metrics: counted})
	once := request("user", "ann")
	once.Hits, once.RequestID = 3, "order-1"

	for range 3 {
		if decision := check(t, client, once); !decision.Allowed {
			t.Errorf("%+v", decision)
		}
	}
	if left := remaining(t, client, request("user", "ann")); left != 0 {
		t.Errorf("%d are left", left)
	}
	// The key is refused here, but the server knows the id.
	if check(t, client, request("user", "ann")).Allowed || !check(t, client, once).Allowed {
		t.Error("the deny cache decided a check with an id")
	}
	once.RequestID = "\xff"
	var invalid *tollgate.InvalidRequestError
	if _, err := client.Check(t.Context(), once); !errors.As(err, &invalid) {
		t.Error(err)
	}
}

func TestConcurrentChecks_OfOneKey_PassExactlyTheLimit(t *testing.T) {
	counted := &counts{}
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{Metrics: counted})
	const callers = 1000
	var passed atomic.Int32
	var group sync.WaitGroup
	for range callers {
		group.Go(func() {
			if checkAside(t, client, request("group", "red")).Allowed {
				passed.Add(1)
			}
		})
	}
	group.Wait()

	if passed.Load() != 100 {
		t.Errorf("%d passed of a limit of 100", passed.Load())
	}
	allowed, denied, local := counted.of(tollgate.Allowed), counted.of(tollgate.Denied), counted.of(tollgate.DeniedLocally)
	sent := 0
	for _, batch := range counted.sent() {
		sent += batch
	}
	if allowed != 100 || allowed+denied+local != callers || sent != allowed+denied {
		t.Errorf("allowed %d, denied %d, locally %d, sent %d", allowed, denied, local, sent)
	}
}

func TestChecks_WhileCallsAreUnderWay_AreSentTogether(t *testing.T) {
	counted, held := &counts{}, &gate{opened: make(chan struct{})}
	options := tollgate.Options{Metrics: counted, MaxCalls: 1, DialOptions: []grpc.DialOption{held.option()}}
	client := newClient(t, servertest.Start(t, rules).Address, options)
	var group sync.WaitGroup
	one := func() { group.Go(func() { checkAside(t, client, request("group", "red")) }) }
	one()
	servertest.Eventually(t, "the first check is sent at once", func() bool { return held.waiting.Load() == 1 })
	for range 300 {
		one()
	}
	servertest.Eventually(t, "the others wait", func() bool { return client.Queued() == 300 })
	close(held.opened)
	group.Wait()

	if sent := counted.sent(); !slices.Equal(sent, []int{1, 256, 44}) {
		t.Errorf("batches of %v", sent)
	}
}

func TestLargeChecks_BeyondBytesOfABatch_AreSentApart(t *testing.T) {
	counted, held := &counts{}, &gate{opened: make(chan struct{})}
	options := tollgate.Options{Metrics: counted, MaxCalls: 1, DialOptions: []grpc.DialOption{held.option()}}
	client := newClient(t, servertest.Start(t, rules).Address, options)
	large := request("user", string(make([]byte, 600_000)))
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() { checkAside(t, client, large) })
	}
	servertest.Eventually(t, "two checks wait", func() bool { return client.Queued() == 2 })
	close(held.opened)
	group.Wait()

	if sent := counted.sent(); !slices.Equal(sent, []int{1, 1, 1}) {
		t.Errorf("batches of %v", sent)
	}
}

func TestLargestRequest_OfAMessage_IsDecided(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	if !check(t, client, request("user", string(make([]byte, 4<<20-64)))).Allowed {
		t.Error("denied")
	}
}

func TestCheck_BeyondFullQueue_GetsTheDefault(t *testing.T) {
	counted, held := &counts{}, &gate{opened: make(chan struct{})}
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{
		Metrics: counted, MaxCalls: 1, MaxQueue: 2, OnNoAnswer: tollgate.Deny, DialOptions: []grpc.DialOption{held.option()},
	})
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() { checkAside(t, client, request("group", "red")) })
	}
	servertest.Eventually(t, "two checks wait", func() bool { return client.Queued() == 2 })

	decision, err := client.Check(t.Context(), request("group", "red"))

	if err != nil || decision.Allowed || decision.NoAnswer == nil || counted.of(tollgate.QueueFull) != 1 {
		t.Errorf("%+v %v", decision, err)
	}
	close(held.opened)
	group.Wait()
}

func TestCanceledCheck_InQueue_ChargesNothing(t *testing.T) {
	counted, held := &counts{}, &gate{opened: make(chan struct{})}
	options := tollgate.Options{Metrics: counted, MaxCalls: 1, DialOptions: []grpc.DialOption{held.option()}}
	client := newClient(t, servertest.Start(t, rules).Address, options)
	var group sync.WaitGroup
	group.Go(func() { checkAside(t, client, request("group", "red")) })
	servertest.Eventually(t, "a call is under way", func() bool { return held.waiting.Load() == 1 })
	canceled, cancel := context.WithCancel(t.Context())
	group.Go(func() {
		if _, err := client.Check(canceled, request("group", "red")); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	servertest.Eventually(t, "the second check waits", func() bool { return client.Queued() == 1 })
	cancel()
	servertest.Eventually(t, "it waits no longer", func() bool { return client.Queued() == 0 })
	close(held.opened)
	group.Wait()

	if sent := counted.sent(); !slices.Equal(sent, []int{1}) || counted.of(tollgate.Failed) != 1 {
		t.Errorf("batches of %v", sent)
	}
}

func TestRefusedKey_WithoutServer_IsDeniedLocally(t *testing.T) {
	counted := &counts{}
	server := servertest.Start(t, rules)
	client := newClient(t, server.Address, tollgate.Options{Metrics: counted, DenyCacheMax: time.Hour})
	for range 4 {
		check(t, client, request("user", "ann"))
	}
	server.Kill()

	decision := check(t, client, request("user", "ann"))

	if decision.Allowed || !decision.Local || decision.RetryAfter <= 0 || counted.of(tollgate.DeniedLocally) != 1 {
		t.Errorf("%+v", decision)
	}
	if another, err := client.Check(t.Context(), request("user", "bob")); err != nil || another.NoAnswer == nil {
		t.Errorf("%+v %v", another, err)
	}
}

func TestRefusal_ThatNeverEnds_IsNotCached(t *testing.T) {
	counted := &counts{}
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{Metrics: counted, DenyCacheMax: time.Hour})
	four := request("user", "ann")
	four.Hits = 4

	for range 2 {
		if decision := check(t, client, four); decision.Allowed || decision.RetryAfter != 0 || decision.Local {
			t.Errorf("%+v", decision)
		}
	}
}

func TestInvalidRequest_ByEachCall_IsAnError(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	unit := request("user", "ann")
	unit.Descriptors[0].Limit = &tollgate.Limit{RequestsPerUnit: 1}
	invalid := map[string]tollgate.Request{
		"no domain":       {Descriptors: []tollgate.Descriptor{tollgate.Describe("user", "ann")}},
		"no descriptors":  {Domain: "edge"},
		"no unit":         unit,
		"too large":       request("user", string(make([]byte, 4<<20))),
		"not UTF-8":       request("user", "\xff"),
		"domain no UTF-8": {Domain: "\xff", Descriptors: []tollgate.Descriptor{tollgate.Describe("user", "ann")}},
	}
	calls := map[string]func(context.Context, tollgate.Request) (tollgate.Decision, error){
		"check": client.Check, "peek": client.Peek, "refund": client.Refund,
	}
	for what, request := range invalid {
		for name, call := range calls {
			decision, err := call(t.Context(), request)
			if refused := (*tollgate.InvalidRequestError)(nil); !errors.As(err, &refused) || decision.Allowed {
				t.Errorf("%s: %s: %+v %v", name, what, decision, err)
			}
		}
	}
}

func TestInvalidRequest_InABatch_FailsAlone(t *testing.T) {
	counted, held := &counts{}, &gate{opened: make(chan struct{})}
	options := tollgate.Options{Metrics: counted, MaxCalls: 1, DialOptions: []grpc.DialOption{held.option()}}
	client := newClient(t, servertest.Start(t, rules).Address, options)
	crowded := tollgate.Request{Domain: "edge"}
	// So large that the server refuses the call and not only the request.
	for range 1000 {
		crowded.Descriptors = append(crowded.Descriptors, tollgate.Describe("user", "ann"))
	}
	var group sync.WaitGroup
	group.Go(func() { checkAside(t, client, request("group", "red")) })
	servertest.Eventually(t, "a call is under way", func() bool { return held.waiting.Load() == 1 })
	for _, invalid := range []tollgate.Request{{Domain: "edge"}, crowded} {
		group.Go(func() {
			var refused *tollgate.InvalidRequestError
			if _, err := client.Check(t.Context(), invalid); !errors.As(err, &refused) {
				t.Error(err)
			}
		})
	}
	group.Go(func() { checkAside(t, client, request("group", "red")) })
	servertest.Eventually(t, "the others wait", func() bool { return client.Queued() == 3 })
	close(held.opened)
	group.Wait()

	if counted.of(tollgate.Allowed) != 2 || counted.of(tollgate.Failed) != 2 {
		t.Errorf("%+v", counted.outcomes)
	}
}

func TestRefund_OfRefusedKey_LetsItPass(t *testing.T) {
	counted := &counts{}
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{Metrics: counted, DenyCacheMax: time.Hour})
	for range 3 {
		check(t, client, request("user", "ann"))
	}
	if check(t, client, request("user", "ann")).Local || !check(t, client, request("user", "ann")).Local {
		t.Fatal("the second refusal must be local")
	}

	refund, err := client.Refund(t.Context(), request("user", "ann"))

	if err != nil || !refund.Allowed || refund.Tightest().Remaining != 1 {
		t.Errorf("%+v %v", refund, err)
	}
	if !check(t, client, request("user", "ann")).Allowed {
		t.Error("refused after a refund")
	}
}

func TestPeek_OfALimit_ChargesNothing(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	for range 5 {
		decision, err := client.Peek(t.Context(), request("user", "ann"))
		if err != nil || !decision.Allowed || decision.Tightest() == nil || decision.Tightest().Remaining != 3 {
			t.Fatalf("%+v %v", decision, err)
		}
	}
}

func TestLimitAndHits_InTheRequest_ReplaceThoseOfTheRule(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	seven := uint64(7)
	given := request("user", "ann")
	given.Descriptors[0].Limit = &tollgate.Limit{RequestsPerUnit: 10, Unit: tollgate.Day}
	given.Descriptors[0].Hits = &seven

	limit := check(t, client, given).Limits[0]

	if limit.RequestsPerUnit != 10 || limit.Unit != tollgate.Day || limit.Remaining != 3 || limit.Rule != "" {
		t.Errorf("%+v", limit)
	}
}

func TestDelayedRequest_OfAQueue_IsAllowedWithItsDelay(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	first, second := check(t, client, request("turn", "a")), check(t, client, request("turn", "a"))

	if !first.Allowed || first.Delay != 0 || !second.Allowed || second.Delay <= 0 || second.Delay > time.Second {
		t.Errorf("%+v %+v", first, second)
	}
}

func TestSilentServer_AtDeadline_GetsTheDefault(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()

	for fallback, allowed := range map[tollgate.Default]bool{tollgate.Allow: true, tollgate.Deny: false} {
		counted := &counts{}
		const timeout = 50 * time.Millisecond
		options := tollgate.Options{OnNoAnswer: fallback, Metrics: counted, Timeout: timeout}
		client := newClient(t, listener.Addr().String(), options)
		begin := time.Now()
		decision, err := client.Check(t.Context(), request("user", "ann"))
		elapsed := time.Since(begin)
		if err != nil || decision.Allowed != allowed || decision.NoAnswer == nil || counted.of(tollgate.NoAnswer) != 1 {
			t.Errorf("%+v %v", decision, err)
		}
		if elapsed < timeout || elapsed > patient/2 {
			t.Errorf("after %s", elapsed)
		}
	}
}

func TestServer_ThatFallsSilent_GetsTheDefaultUntilItAnswers(t *testing.T) {
	server := servertest.Start(t, rules)
	client := newClient(t, server.Address, tollgate.Options{OnNoAnswer: tollgate.Deny, Timeout: 50 * time.Millisecond})
	answers := func() bool {
		decision, err := client.Check(t.Context(), request("free", "ann"))
		if err != nil {
			t.Fatal(err)
		}
		if decision.Allowed == (decision.NoAnswer != nil) {
			t.Fatalf("%+v", decision)
		}
		return decision.Allowed
	}
	servertest.Eventually(t, "an answer", answers)
	server.Pause(t)
	servertest.Eventually(t, "the default", func() bool { return !answers() })
	server.Resume(t)
	servertest.Eventually(t, "an answer again", answers)
}

func TestAbsentServer_ByEachCall_GetsTheDefaultOrAnError(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	client := newClient(t, listener.Addr().String(), tollgate.Options{Timeout: 5 * time.Second, OnNoAnswer: tollgate.Deny})
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}

	checked, err := client.Check(t.Context(), request("user", "ann"))
	peeked, peekErr := client.Peek(t.Context(), request("user", "ann"))
	_, refundErr := client.Refund(t.Context(), request("user", "ann"))

	if err != nil || checked.Allowed || checked.NoAnswer == nil {
		t.Errorf("check: %+v %v", checked, err)
	}
	if peekErr != nil || peeked.Allowed || peeked.NoAnswer == nil {
		t.Errorf("peek: %+v %v", peeked, peekErr)
	}
	if refundErr == nil {
		t.Error("a refund without an answer is no error")
	}
}

func TestServer_AfterRestart_IsAskedAgain(t *testing.T) {
	server := servertest.Start(t, rules)
	client := newClient(t, server.Address, tollgate.Options{Timeout: time.Second})
	check(t, client, request("user", "ann"))
	server.Kill()
	if decision, err := client.Check(t.Context(), request("user", "ann")); err != nil || decision.NoAnswer == nil {
		t.Fatalf("%+v %v", decision, err)
	}

	servertest.StartAt(t, server.Address, rules)

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
	options := tollgate.Options{DialOptions: []grpc.DialOption{grpc.WithResolvers(name)}, DenyCacheSize: -1}
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

func TestDenyCache_TurnedOff_AsksTheServer(t *testing.T) {
	counted := &counts{}
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{Metrics: counted, DenyCacheSize: -1})
	for range 5 {
		check(t, client, request("user", "ann"))
	}

	if counted.of(tollgate.Allowed) != 3 || counted.of(tollgate.Denied) != 2 || counted.of(tollgate.DeniedLocally) != 0 {
		t.Errorf("%v", counted.outcomes)
	}
}

func TestOption_ThatIsNegative_IsAnError(t *testing.T) {
	if _, err := tollgate.New("127.0.0.1:1", tollgate.Options{Timeout: -1}); err == nil {
		t.Error("a negative timeout is taken")
	}
}
