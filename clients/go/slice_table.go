package tollgate

import (
	"errors"
	"slices"
	"time"

	pb "example.com/tollgate/gen/tollgate/v1"
)

const (
	// The longest pause between attempts to reserve a slice that the server refuses.
	refusedPauseMax = time.Second
	// A slice that lasts less is not worth its calls.
	sliceTimeMin = 50 * time.Millisecond
)

// Pauses before the end of a slice is repeated.
var endPauses = [...]time.Duration{100 * time.Millisecond, 400 * time.Millisecond}

// sliceTable is the state of the slices of all keys, without calls and without a clock.
type sliceTable struct {
	options SliceOptions
	keys    map[counterKey]*sliceKey
	closed  bool
}

// sliceKey is the state of one key.
type sliceKey struct {
	// What is reserved; nil if the request cannot be sent.
	message *pb.Request
	// Nil while there is none.
	slice *slice
	// Whether a reservation is under way, and since when.
	reserving bool
	begin     time.Time
	// Nothing is reserved until this instant. Zero without a pause.
	pausedUntil time.Time
	// Ends that are under way or wait to be repeated.
	ends []*sliceEnd
}

// slice is a number of hits that this process may spend.
type slice struct {
	reservation *Reservation
	// From an instant before that of the server, so the slice ends no later than there.
	begin, renewAt, until time.Time
	left                  uint64
	// Whether little is left, or a check did not fit.
	isLow bool
}

// sliceEnd is a settlement or a cancellation of a reservation.
type sliceEnd struct {
	reservation *Reservation
	// Whether nothing was spent, because the reservation is no slice.
	cancels bool
	spent   uint64
	// Hits that stay charged if the end has no answer.
	unspent uint64
	// Those without an answer.
	attempts int
	// Zero while a call is under way.
	repeatAt time.Time
}

// sliceActions are what a step of the state begins.
type sliceActions struct {
	reserve bool
	ends    []*sliceEnd
	lost    uint64
}

func (a *sliceActions) isEmpty() bool {
	return !a.reserve && len(a.ends) == 0 && a.lost == 0
}

// serves says whether a request may be spent from slices.
func (t *sliceTable) serves(request *Request) bool {
	return !request.hasOwnTerms() && request.RequestID == "" && request.Hits <= t.options.Hits
}

// check returns the decision of a slice. Without one, the server decides.
func (t *sliceTable) check(key counterKey, hits uint64, now time.Time) (Decision, bool, sliceActions) {
	actions := t.due(key, now)
	known := t.keys[key]
	switch {
	case known == nil:
		if !t.closed && len(t.keys) < t.options.KeysMax {
			t.keys[key] = &sliceKey{reserving: true, begin: now}
			actions.reserve = true
		}
		return Decision{}, false, actions
	case known.slice == nil:
		return Decision{}, false, actions
	}
	slice := known.slice
	fits := hits <= slice.left
	if fits {
		slice.left -= hits
	}
	slice.isLow = slice.isLow || !fits || slice.left <= t.options.Hits/4
	t.renew(known, now, &actions)
	if !fits {
		return Decision{}, false, actions
	}
	decision := slice.reservation.Decision.after(SourcePrepaid, now.Sub(slice.begin))
	for i := range decision.Limits {
		decision.Limits[i].Remaining += slice.left
	}
	return decision, true, actions
}

// reserved takes the answer to a reservation; nil if the request is invalid.
func (t *sliceTable) reserved(key counterKey, reservation *Reservation, now time.Time) sliceActions {
	known := t.keys[key]
	known.reserving = false
	var actions sliceActions
	if lasts := t.lasts(reservation); lasts >= sliceTimeMin && !t.closed {
		t.settle(known, &actions)
		until := known.begin.Add(lasts)
		known.slice = &slice{
			reservation: reservation, begin: known.begin, renewAt: until.Add(-lasts / 4), until: until, left: t.options.Hits,
		}
	} else {
		pause := refusedPauseMax
		if reservation != nil && reservation.id != "" {
			end := &sliceEnd{reservation: reservation, cancels: true}
			// Without an answer, it is not known whether they are held.
			if reservation.Decision.Source == SourceServer {
				end.unspent = t.options.Hits
			}
			known.end(end, &actions)
		}
		if reservation != nil && reservation.Decision.RetryAfter > 0 {
			pause = min(pause, reservation.Decision.RetryAfter)
		}
		known.pausedUntil = now.Add(pause)
	}
	t.advance(key, now, &actions)
	return actions
}

// ended takes the answer to the end of a slice.
func (t *sliceTable) ended(key counterKey, end *sliceEnd, err error, now time.Time) sliceActions {
	known := t.keys[key]
	var actions sliceActions
	noAnswer := (*NoAnswerError)(nil)
	if errors.As(err, &noAnswer) && end.attempts < len(endPauses) {
		end.repeatAt = now.Add(endPauses[end.attempts])
		end.attempts++
	} else {
		known.ends = slices.DeleteFunc(known.ends, func(each *sliceEnd) bool { return each == end })
		if err != nil {
			actions.lost = end.unspent
		}
	}
	t.advance(key, now, &actions)
	return actions
}

// close ends all slices.
func (t *sliceTable) close(now time.Time) map[counterKey]sliceActions {
	t.closed = true
	all := map[counterKey]sliceActions{}
	for key, known := range t.keys {
		var actions sliceActions
		t.settle(known, &actions)
		t.advance(key, now, &actions)
		all[key] = actions
	}
	return all
}

// due does what is due at this instant.
func (t *sliceTable) due(key counterKey, now time.Time) sliceActions {
	var actions sliceActions
	t.advance(key, now, &actions)
	return actions
}

// nextDue is the next instant after now at which something is due. It is false if nothing will be.
func (t *sliceTable) nextDue(key counterKey, now time.Time) (time.Time, bool) {
	known := t.keys[key]
	if known == nil {
		return time.Time{}, false
	}
	instants := []time.Time{known.pausedUntil}
	for _, end := range known.ends {
		instants = append(instants, end.repeatAt)
	}
	if known.slice != nil {
		instants = append(instants, known.slice.renewAt, known.slice.until)
	}
	instants = slices.DeleteFunc(instants, func(at time.Time) bool { return !at.After(now) })
	if len(instants) == 0 {
		return time.Time{}, false
	}
	return slices.MinFunc(instants, time.Time.Compare), true
}

// advance does what is due, and forgets a key of which nothing is left.
func (t *sliceTable) advance(key counterKey, now time.Time, actions *sliceActions) {
	known := t.keys[key]
	if known == nil {
		return
	}
	for _, end := range known.ends {
		if !end.repeatAt.IsZero() && !now.Before(end.repeatAt) {
			end.repeatAt = time.Time{}
			actions.ends = append(actions.ends, end)
		}
	}
	if t.closed || !now.Before(known.pausedUntil) {
		known.pausedUntil = time.Time{}
	}
	if slice := known.slice; slice != nil {
		isUnused := slice.left == t.options.Hits
		if !now.Before(slice.until) || (isUnused && !now.Before(slice.renewAt)) {
			t.settle(known, actions)
		} else {
			t.renew(known, now, actions)
		}
	}
	if known.slice == nil && known.isIdle() {
		delete(t.keys, key)
	}
}

func (t *sliceTable) renew(known *sliceKey, now time.Time, actions *sliceActions) {
	if known.isIdle() && (known.slice.isLow || !now.Before(known.slice.renewAt)) {
		known.reserving, known.begin = true, now
		actions.reserve = true
	}
}

func (t *sliceTable) settle(known *sliceKey, actions *sliceActions) {
	if ended := known.slice; ended != nil {
		known.slice = nil
		spent := t.options.Hits - ended.left
		known.end(&sliceEnd{reservation: ended.reservation, spent: spent, unspent: ended.left}, actions)
	}
}

// lasts is the time for which a reservation may be spent; 0 if it may not.
func (t *sliceTable) lasts(reservation *Reservation) time.Duration {
	// A turn in a queue cannot be spent later.
	if reservation == nil || reservation.id == "" || reservation.Decision.Source != SourceServer ||
		reservation.Decision.Delay > 0 {
		return 0
	}
	lasts := t.options.TTL
	// Hits of a window that has ended must not be spent in the next one.
	for _, limit := range reservation.Decision.Limits {
		lasts = min(lasts, limit.ResetAfter)
	}
	return lasts
}

// isIdle says whether no call is under way and no pause goes on. One call at a time bounds them.
func (k *sliceKey) isIdle() bool {
	return !k.reserving && k.pausedUntil.IsZero() && len(k.ends) == 0
}

func (k *sliceKey) end(end *sliceEnd, actions *sliceActions) {
	k.ends = append(k.ends, end)
	actions.ends = append(actions.ends, end)
}
