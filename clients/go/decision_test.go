package tollgate

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestTightestLimit_OfSeveral_IsTheOneToReport(t *testing.T) {
	cases := map[string]struct {
		decision Decision
		want     string
	}{
		"fewest remaining": {Decision{Limits: []LimitStatus{{Rule: "a", Remaining: 5}, {Rule: "b", Remaining: 2}}}, "b"},
		"first of equals":  {Decision{Limits: []LimitStatus{{Rule: "a", Remaining: 2}, {Rule: "b", Remaining: 2}}}, "a"},
		"one that denies":  {Decision{Limits: []LimitStatus{{Rule: "a"}, {Rule: "b", Remaining: 2, Refused: true}}}, "b"},
		"in shadow mode": {Decision{Allowed: true, Limits: []LimitStatus{
			{Rule: "a"}, {Rule: "b", Remaining: 2, Refused: true},
		}}, "a"},
		"the longest wait": {Decision{Limits: []LimitStatus{
			{Rule: "a", Refused: true, ResetAfter: 1}, {Rule: "b", Refused: true, ResetAfter: 2},
		}}, "b"},
	}
	for name, each := range cases {
		if got := each.decision.Tightest(); got.Rule != each.want {
			t.Errorf("%s: %s", name, got.Rule)
		}
	}
	if (&Decision{}).Tightest() != nil {
		t.Error("a decision without limits has a tightest limit")
	}
}

func TestWait_ForDelay_EndsWithItOrWithTheContext(t *testing.T) {
	begin := time.Now()
	if err := (&Decision{Delay: time.Millisecond}).Wait(t.Context()); err != nil || time.Since(begin) < time.Millisecond {
		t.Errorf("%v after %s", err, time.Since(begin))
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (&Decision{Delay: time.Hour}).Wait(ended); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
