package tollgate

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

// instants count from here.
var epoch = time.Now()

func instant(ms float64) time.Time {
	return epoch.Add(milliseconds(ms))
}

type cacheStep struct {
	At, Sent                          float64
	RetryAfter                        float64  `json:"retry_after_ms"`
	ResetAfter                        *float64 `json:"reset_after_ms"`
	Check, Refuse, Refund, Begin, End *VectorRequest
	Clear                             bool
	Denied                            any
}

func TestDenyCache_OfVectors_DeniesWhatTheyDeny(t *testing.T) {
	type vector struct {
		Name    string
		Options map[string]any
		Steps   []cacheStep
	}
	for _, vector := range LoadVectors[vector](t, "deny_cache") {
		t.Run(vector.Name, func(t *testing.T) {
			options, err := VectorOptions(vector.Options).withDefaults()
			if err != nil {
				t.Fatal(err)
			}
			cache := newDenyCache(options.DenyCacheKeys, options.DenyCacheMax)
			for i, step := range vector.Steps {
				if text := runCacheStep(cache, &step); text != "" {
					t.Errorf("step %d:%s", i, text)
				}
			}
			if len(cache.underWay) > 0 {
				t.Error("checks are under way")
			}
		})
	}
}

func runCacheStep(cache *denyCache, step *cacheStep) string {
	parts := func(request *VectorRequest) (counterKey, []uint64) {
		asked := request.Request()
		return asked.counters(), asked.hits()
	}
	now := instant(step.At)
	switch {
	case step.Refuse != nil:
		limit := LimitStatus{Refused: true, ResetAfter: milliseconds(step.RetryAfter)}
		if step.ResetAfter != nil {
			limit.ResetAfter = milliseconds(*step.ResetAfter)
		}
		key, hits := parts(step.Refuse)
		cache.begin(key)
		decision := Decision{RetryAfter: milliseconds(step.RetryAfter), Limits: []LimitStatus{limit}}
		cache.refuse(key, hits, decision, instant(step.Sent))
		cache.end(key)
	case step.Refund != nil:
		key, _ := parts(step.Refund)
		cache.refund(key, now)
	case step.Clear:
		cache.clear(now)
	case step.Begin != nil:
		key, _ := parts(step.Begin)
		cache.begin(key)
	case step.End != nil:
		key, _ := parts(step.End)
		cache.end(key)
	case step.Check != nil:
		key, hits := parts(step.Check)
		decision, denied := cache.denied(key, hits, now)
		if wanted, isTold := step.Denied.(bool); isTold {
			return differences(wanted, denied)
		}
		if !denied || decision.Allowed || decision.Source != SourceDenyCache {
			return fmt.Sprintf(" %+v", decision)
		}
		described := describeDecision(decision)
		described["reset_after_ms"] = float64(decision.Limits[0].ResetAfter.Milliseconds())
		return differences(step.Denied, described)
	}
	return ""
}

type sliceStep struct {
	At         float64
	Key        string
	Check      *VectorRequest
	Remaining  *uint64
	ResetAfter *float64 `json:"reset_after_ms"`
	Reserved   *VectorAnswer
	Held       *bool
	Ended      string
	Due, Close bool
	Calls      []string
}

// sliceRun is the state machine of slices, and its calls that are under way.
type sliceRun struct {
	table sliceTable
	ends  map[counterKey][]*sliceEnd
	last  time.Time
}

func TestSlices_OfVectors_HaveTheirDecisionsAndCalls(t *testing.T) {
	type vector struct {
		Name    string
		Options map[string]any
		Steps   []sliceStep
	}
	for _, vector := range LoadVectors[vector](t, "slices") {
		t.Run(vector.Name, func(t *testing.T) {
			var options SliceOptions
			for name, value := range vector.Options {
				setOption(&options, name, value)
			}
			options, err := options.withDefaults()
			if err != nil {
				t.Fatal(err)
			}
			table := sliceTable{options: options, keys: map[counterKey]*sliceKey{}}
			run := &sliceRun{table, map[counterKey][]*sliceEnd{}, epoch}
			for i, step := range vector.Steps {
				calls, text := run.step(&step)
				if text != "" || !slices.Equal(calls, step.Calls) {
					t.Fatalf("step %d: calls %v%s", i, calls, text)
				}
			}
		})
	}
}

// step returns the calls that the step begins, and what is wrong.
func (r *sliceRun) step(step *sliceStep) (calls []string, text string) {
	now := instant(step.At)
	asked := (&VectorRequest{User: "red"}).Request()
	if step.Check != nil {
		asked = step.Check.Request()
	} else if step.Key != "" {
		asked = (&VectorRequest{User: step.Key}).Request()
	}
	key := asked.counters()
	var actions sliceActions
	switch {
	case step.Check != nil:
		var remaining *uint64
		if r.table.serves(&asked) {
			var decision Decision
			var spent bool
			if decision, spent, actions = r.table.check(key, max(asked.Hits, 1), now); spent {
				remaining = &decision.Limits[0].Remaining
				if step.ResetAfter != nil && decision.Limits[0].ResetAfter != milliseconds(*step.ResetAfter) {
					text = fmt.Sprintf(" %+v", decision)
				}
			}
		}
		if (remaining == nil) != (step.Remaining == nil) || (remaining != nil && *remaining != *step.Remaining) {
			text += fmt.Sprintf(" is asked: %t, expected %t", remaining == nil, step.Remaining == nil)
		}
	case step.Reserved != nil:
		actions = r.table.reserved(key, reservationOf(step), now)
	case step.Ended != "":
		end := r.ends[key][0]
		r.ends[key] = r.ends[key][1:]
		actions = r.table.ended(key, end, errorNamed(step.Ended), now)
	case step.Due:
		if at, known := r.table.nextDue(key, r.last); !known || !at.Equal(now) {
			text = fmt.Sprintf(" due at %s", at.Sub(epoch))
		}
		actions = r.table.due(key, now)
	case step.Close:
		actions = r.table.close(now)[key]
	}
	r.last = now
	for _, end := range actions.ends {
		r.ends[key] = append(r.ends[key], end)
		if end.cancels {
			calls = append(calls, "cancel")
		} else {
			calls = append(calls, fmt.Sprintf("settle %d", end.spent))
		}
	}
	if actions.reserve {
		calls = append(calls, "reserve")
	}
	if actions.lost > 0 {
		calls = append(calls, fmt.Sprintf("lost %d", actions.lost))
	}
	return calls, text
}

// reservationOf is what the client makes of an answer to a reservation.
func reservationOf(step *sliceStep) *Reservation {
	switch step.Reserved.Verdict {
	case "invalid":
		return nil
	case "no_answer":
		return &Reservation{id: "chosen", Decision: Decision{Source: SourceDefault, NoAnswer: &NoAnswerError{}}}
	}
	// Vectors have valid answers.
	decision, _ := decisionOf(step.Reserved.message())
	reservation := &Reservation{Decision: decision}
	if decision.Allowed && (step.Held == nil || *step.Held) {
		reservation.id = "held"
	}
	return reservation
}

func errorNamed(name string) error {
	return map[string]error{
		"no_answer": &NoAnswerError{codes.Unavailable, "going down"}, "invalid": &InvalidRequestError{"other descriptors"},
	}[name]
}
