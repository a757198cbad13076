package tollgate

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestTightestLimit_OfSeveral_IsTheOneToReport(t *testing.T) {
	cases := map[string]struct {
		limits []LimitStatus
		want   string
	}{
		"fewest remaining": {[]LimitStatus{{Rule: "a", Remaining: 5}, {Rule: "b", Remaining: 2}}, "b"},
		"first of equals":  {[]LimitStatus{{Rule: "a", Remaining: 2}, {Rule: "b", Remaining: 2}}, "a"},
		"a refusing one":   {[]LimitStatus{{Rule: "a"}, {Rule: "b", Remaining: 2, Refused: true}}, "b"},
		"the longest wait": {[]LimitStatus{
			{Rule: "a", Refused: true, ResetAfter: 1}, {Rule: "b", Refused: true, ResetAfter: 2},
		}, "b"},
	}
	for name, each := range cases {
		decision := Decision{Limits: each.limits}
		if got := decision.Tightest(); got.Rule != each.want {
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
