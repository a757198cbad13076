package tollgate

import (
	"fmt"
	"testing"
	"time"
)

var start = time.Now()

func refusedFor(wait time.Duration) Decision {
	return Decision{RetryAfter: wait, Limits: []LimitStatus{{Refused: true, RetryAfter: wait, ResetAfter: wait}}}
}

func keyOf(user string) counterKey {
	request := Request{Domain: "edge", Descriptors: []Descriptor{Describe("user", user)}}
	return request.counters()
}

func (c *denyCache) denies(user string, hits uint64, at time.Duration) bool {
	_, denied := c.denied(keyOf(user), []uint64{hits}, start.Add(at))
	return denied
}

func TestRefusedKey_UntilRetryAfter_IsDeniedLocally(t *testing.T) {
	cache := newDenyCache(10, time.Hour)
	cache.refuse(keyOf("ann"), []uint64{1}, refusedFor(3*time.Second), start)

	if !cache.denies("ann", 1, 3*time.Second-1) || cache.denies("ann", 1, 3*time.Second) {
		t.Error("the refusal must end at its retry-after, to the nanosecond")
	}
	if cache.denies("bob", 1, 0) {
		t.Error("another key is refused")
	}
}

func TestLocalDenial_AfterAWhile_HasTheRestOfItsTimes(t *testing.T) {
	cache := newDenyCache(10, time.Hour)
	cache.refuse(keyOf("ann"), []uint64{1}, refusedFor(3*time.Second), start)

	decision, _ := cache.denied(keyOf("ann"), []uint64{1}, start.Add(time.Second))

	limit := decision.Limits[0]
	if !decision.Local || decision.RetryAfter != 2*time.Second || limit.ResetAfter != limit.RetryAfter ||
		limit.RetryAfter != 2*time.Second {
		t.Errorf("%+v", decision)
	}
}

func TestRefusedKey_WithFewerHits_IsAskedFor(t *testing.T) {
	cache := newDenyCache(10, time.Hour)
	cache.refuse(keyOf("ann"), []uint64{5}, refusedFor(time.Minute), start)

	if cache.denies("ann", 4, 0) || !cache.denies("ann", 5, 0) || !cache.denies("ann", 6, 0) {
		t.Error("only as many hits as were refused, or more, are certain to be refused")
	}
}

func TestLongRefusal_AfterMaximum_IsAskedForAgain(t *testing.T) {
	cache := newDenyCache(10, time.Second)
	cache.refuse(keyOf("ann"), []uint64{1}, refusedFor(time.Hour), start)

	if !cache.denies("ann", 1, time.Second-1) || cache.denies("ann", 1, time.Second) {
		t.Error("the refusal must end at the maximum")
	}
}

func TestRefusal_WithoutRetryAfter_IsNotCached(t *testing.T) {
	cache := newDenyCache(10, time.Hour)
	cache.refuse(keyOf("ann"), []uint64{1}, refusedFor(0), start)

	if cache.denies("ann", 1, 0) {
		t.Error("refused without an end")
	}
}

func TestRefund_OfRefusedKey_EndsItsRefusals(t *testing.T) {
	cache := newDenyCache(10, time.Hour)
	cache.begin(keyOf("ann"))
	cache.refuse(keyOf("ann"), []uint64{1}, refusedFor(time.Minute), start)
	cache.refund(keyOf("ann"), start.Add(2))
	if cache.denies("ann", 1, 3) {
		t.Error("refused after a refund")
	}

	cache.refuse(keyOf("ann"), []uint64{1}, refusedFor(time.Minute), start.Add(1))
	if cache.denies("ann", 1, 3) {
		t.Error("the server may have refused before the refund")
	}

	cache.refuse(keyOf("ann"), []uint64{1}, refusedFor(time.Minute), start.Add(2))
	if !cache.denies("ann", 1, 3) {
		t.Error("a refusal after the refund is not cached")
	}
}

func TestRefunds_OfUnknownKeys_KeepRefusals(t *testing.T) {
	cache := newDenyCache(1, time.Hour)
	cache.refuse(keyOf("ann"), []uint64{1}, refusedFor(time.Minute), start)
	for user := range 10 {
		cache.refund(keyOf(fmt.Sprint(user)), start.Add(1))
	}

	if !cache.denies("ann", 1, 2) || len(cache.underWay) != 0 {
		t.Error("a refund of another key has ended the refusal")
	}
}

func TestLastCheck_OfAKey_EndsItsRecord(t *testing.T) {
	cache := newDenyCache(10, time.Hour)
	cache.begin(keyOf("ann"))
	cache.begin(keyOf("ann"))
	cache.end(keyOf("ann"))
	cache.refund(keyOf("ann"), start.Add(2))
	cache.refuse(keyOf("ann"), []uint64{1}, refusedFor(time.Minute), start.Add(1))
	cache.end(keyOf("ann"))

	if cache.denies("ann", 1, 3) || len(cache.underWay) != 0 {
		t.Error("the record of checks under way must last as long as they do")
	}
}

func TestFullCache_WithAnotherKey_DropsTheOldest(t *testing.T) {
	cache := newDenyCache(3, time.Hour)
	for user := range 4 {
		cache.refuse(keyOf(fmt.Sprint(user)), []uint64{1}, refusedFor(time.Minute), start)
	}

	if cache.denies("0", 1, 0) || !cache.denies("1", 1, 0) || !cache.denies("3", 1, 0) {
		t.Error("the oldest key and no other must be dropped")
	}
	if len(cache.keys) != 3 || cache.order.Len() != 3 {
		t.Errorf("%d keys, %d in order", len(cache.keys), cache.order.Len())
	}
}

func TestKeys_OfDifferentCounters_Differ(t *testing.T) {
	limited := Describe("user", "ann")
	limited.Limit = &Limit{RequestsPerUnit: 5, Unit: Minute}
	requests := []Request{
		{Domain: "edge", Descriptors: []Descriptor{Describe("a", "b"), Describe("c", "d")}},
		{Domain: "edge", Descriptors: []Descriptor{Describe("a", "b").And("c", "d")}},
		{Domain: "edge", Descriptors: []Descriptor{Describe("ab", "").And("c", "d")}},
		{Domain: "edg", Descriptors: []Descriptor{Describe("ea", "b").And("c", "d")}},
		{Domain: "edge", Descriptors: []Descriptor{Describe("user", "ann")}},
		{Domain: "edge", Descriptors: []Descriptor{limited}},
	}
	keys := map[counterKey]bool{}
	for _, request := range requests {
		keys[request.counters()] = true
	}
	if len(keys) != len(requests) {
		t.Errorf("%d keys of %d requests", len(keys), len(requests))
	}
}
