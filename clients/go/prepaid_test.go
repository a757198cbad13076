package tollgate_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"example.com/tollgate"
	"example.com/tollgate/internal/servertest"
)

func newSlices(t *testing.T, client *tollgate.Client, options tollgate.SliceOptions) *tollgate.PrepaidSlices {
	t.Helper()
	if options.TTL == 0 {
		options.TTL = time.Minute
	}
	slices, err := tollgate.NewPrepaidSlices(client, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(slices.Close)
	return slices
}

// prepaid checks a request, and says whether it was allowed and whether a slice or the server decided.
func prepaid(t *testing.T, slices *tollgate.PrepaidSlices, request tollgate.Request) (allowed, local bool) {
	t.Helper()
	decision, err := slices.Check(t.Context(), request)
	if err != nil || decision.NoAnswer != nil {
		t.Error(err, decision.NoAnswer)
	}
	return decision.Allowed, decision.Local
}

// untilPrepaid checks until the slice is there, and returns the number of checks, which have all passed.
func untilPrepaid(t *testing.T, slices *tollgate.PrepaidSlices, request tollgate.Request) (passed uint64) {
	t.Helper()
	servertest.Eventually(t, "a check is prepaid", func() bool {
		allowed, local := prepaid(t, slices, request)
		if !allowed {
			t.Fatal("refused")
		}
		passed++
		return local
	})
	return passed
}

func TestSlice_OfAHotKey_IsSpentWithoutCallsAndSettledAtClose(t *testing.T) {
	counted := &counts{}
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{Metrics: counted})
	slices := newSlices(t, client, tollgate.SliceOptions{Hits: 50})
	passed := untilPrepaid(t, slices, group("red", 1))
	sent := len(counted.sent())

	for range 20 {
		decision, err := slices.Check(t.Context(), group("red", 1))
		if err != nil || !decision.Allowed || !decision.Local || decision.Limits[0].Remaining >= 100 {
			t.Errorf("%+v %v", decision, err)
		}
	}

	if len(counted.sent()) != sent || counted.of(tollgate.Prepaid) != 21 {
		t.Errorf("batches of %v, %d prepaid", counted.sent(), counted.of(tollgate.Prepaid))
	}
	if left := remaining(t, client, group("red", 0)); left != 100-50-(passed-1) {
		t.Errorf("%d are left while the slice is held", left)
	}
	slices.Close()
	if left := remaining(t, client, group("red", 0)); left != 100-20-passed {
		t.Errorf("%d are left at last", left)
	}
	if _, local := prepaid(t, slices, group("red", 1)); local {
		t.Error("prepaid after the close")
	}
}

func TestConcurrentSlices_OfOneKey_PassWhatIsCharged(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{DenyCacheSize: -1})
	each := []*tollgate.PrepaidSlices{
		newSlices(t, client, tollgate.SliceOptions{Hits: 10}), newSlices(t, client, tollgate.SliceOptions{Hits: 10}),
	}
	var passed atomic.Uint64
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for range 30 {
				if allowed, _ := prepaid(t, each[i%2], group("red", 1)); allowed {
					passed.Add(1)
				}
			}
		})
	}
	callers.Wait()
	each[0].Close()
	each[1].Close()

	if left := remaining(t, client, group("red", 0)); passed.Load() > 100 || left != 100-passed.Load() {
		t.Errorf("%d passed of a limit of 100, %d are left", passed.Load(), left)
	}
}

func TestSlice_WithLittleLeft_IsRenewed(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	slices := newSlices(t, client, tollgate.SliceOptions{Hits: 20})
	passed := untilPrepaid(t, slices, group("red", 1))
	// Each time 5 hits are left then, a quarter of the slice.
	for _, spent := range []int{14, 15, 15} {
		for range spent {
			if allowed, _ := prepaid(t, slices, group("red", 1)); !allowed {
				t.Error("refused")
			}
			passed++
		}
		servertest.Eventually(t, "a new slice is held, and the one before is settled", func() bool {
			return remaining(t, client, group("red", 0)) == 100-passed-20
		})
	}
	slices.Close()

	if left := remaining(t, client, group("red", 0)); left != 100-passed {
		t.Errorf("%d passed, %d are left", passed, left)
	}
}

func TestSlice_ThatIsNotUsed_IsGivenBack(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	slices := newSlices(t, client, tollgate.SliceOptions{Hits: 20, TTL: 400 * time.Millisecond})
	passed := untilPrepaid(t, slices, group("red", 1))

	servertest.Eventually(t, "the rest is given back", func() bool {
		return remaining(t, client, group("red", 0)) == 100-passed
	})
}

func TestSlice_OfAWindow_EndsWithIt(t *testing.T) {
	server := servertest.Start(t, rules)
	client := newClient(t, server.Address, tollgate.Options{})
	slices := newSlices(t, client, tollgate.SliceOptions{Hits: 500_000, TTL: time.Hour})
	second := request("second", "any")
	untilPrepaid(t, slices, second)
	server.Kill()

	servertest.Eventually(t, "the slice cannot be spent any more", func() bool {
		decision, err := slices.Check(t.Context(), second)
		return err == nil && decision.NoAnswer != nil
	})
}

func TestSlice_ThatLastsTooShort_IsGivenBack(t *testing.T) {
	counted := &counts{}
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{Metrics: counted})
	slices := newSlices(t, client, tollgate.SliceOptions{Hits: 100})
	fast := request("fast", "any")
	begin := time.Now()
	for time.Since(begin) < 300*time.Millisecond {
		if allowed, _ := prepaid(t, slices, fast); !allowed {
			t.Fatal("refused")
		}
	}

	if counted.of(tollgate.Prepaid) != 0 {
		t.Errorf("%d prepaid", counted.of(tollgate.Prepaid))
	}
}

func TestCheck_WithMoreHitsThanASlice_ReservesNone(t *testing.T) {
	counted := &counts{}
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{Metrics: counted})
	slices := newSlices(t, client, tollgate.SliceOptions{Hits: 10})
	for range 5 {
		if allowed, local := prepaid(t, slices, group("red", 20)); !allowed || local {
			t.Error(allowed, local)
		}
	}
	slices.Close()

	if left := remaining(t, client, group("red", 0)); left != 0 || counted.of(tollgate.Prepaid) != 0 {
		t.Errorf("%d are left, %d prepaid", left, counted.of(tollgate.Prepaid))
	}
}

func TestCheck_WithRequestID_AsksTheServer(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	slices := newSlices(t, client, tollgate.SliceOptions{Hits: 50})
	untilPrepaid(t, slices, group("red", 1))
	once := group("red", 1)
	once.RequestID = "order-1"

	if allowed, local := prepaid(t, slices, once); !allowed || local {
		t.Error(allowed, local)
	}
}

func TestSettlement_WithoutServer_CountsLostHits(t *testing.T) {
	counted := &counts{}
	server := servertest.Start(t, rules)
	client := newClient(t, server.Address, tollgate.Options{Metrics: counted, Timeout: 2 * time.Second})
	slices := newSlices(t, client, tollgate.SliceOptions{Hits: 50})
	untilPrepaid(t, slices, group("red", 1))
	server.Kill()
	slices.Close()

	if lost := counted.lostHits(); lost != 49 {
		t.Errorf("%d lost", lost)
	}
}

func TestSlice_LargerThanTheLimit_IsLeftOut(t *testing.T) {
	counted := &counts{}
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{Metrics: counted})
	slices := newSlices(t, client, tollgate.SliceOptions{Hits: 101})
	passed := 0
	for {
		if allowed, _ := prepaid(t, slices, group("red", 1)); !allowed {
			break
		}
		passed++
	}

	if passed != 100 || counted.of(tollgate.Prepaid) != 0 {
		t.Errorf("%d passed, %d prepaid", passed, counted.of(tollgate.Prepaid))
	}
}

func TestKeys_BeyondTheirMaximum_AskTheServer(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	slices := newSlices(t, client, tollgate.SliceOptions{Hits: 20, MaxKeys: 1})
	untilPrepaid(t, slices, group("red", 1))

	for range 20 {
		if _, local := prepaid(t, slices, group("blue", 1)); local {
			t.Error("prepaid")
		}
	}

	if left := remaining(t, client, group("blue", 0)); left != 80 {
		t.Errorf("%d are left", left)
	}
}

func TestSlices_OfInvalidRequestsOrOptions_AreErrors(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	slices := newSlices(t, client, tollgate.SliceOptions{})
	for _, invalid := range []tollgate.Request{{}, request("group", "\xff")} {
		var refused *tollgate.InvalidRequestError
		if _, err := slices.Check(t.Context(), invalid); !errors.As(err, &refused) {
			t.Error(err)
		}
	}
	for _, invalid := range []tollgate.SliceOptions{
		{TTL: -1}, {TTL: time.Microsecond}, {TTL: 25 * time.Hour}, {MaxKeys: -1},
	} {
		if slices, err := tollgate.NewPrepaidSlices(client, invalid); err == nil || slices != nil {
			t.Errorf("%+v", invalid)
		}
	}
}
