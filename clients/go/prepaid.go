package tollgate

import (
	"context"
	"errors"
	"sync"
	"time"

	pb "example.com/tollgate/gen/tollgate/v1"
)

// The longest pause between attempts to reserve a slice that the server refuses.
const maxRefusedPause = time.Second

// A slice that lasts less is not worth its calls.
const minSliceTime = 50 * time.Millisecond

// Pauses before the end of a slice is repeated.
var endPauses = [...]time.Duration{100 * time.Millisecond, 400 * time.Millisecond}

// SliceOptions are the size of prepaid slices. The zero value of each field is its default.
type SliceOptions struct {
	// Hits of each slice; at most what the limit has left, or there is no slice. Default: 100.
	Hits uint64
	// TTL is the time for which a slice may be spent, 1 ms to 24 h. Default: 5 s.
	TTL time.Duration
	// MaxKeys is the number of keys with a slice; checks of further keys ask the server. Default: 100.
	MaxKeys int
}

// PrepaidSlices allow requests of hot keys without a call for each: a part of the limit is reserved and spent here. The
// hits of a slice count from its reservation, so no more passes than the limit. If the process ends without
// [PrepaidSlices.Close], slices stay charged.
//
// While clients hold slices, others may be refused although not all hits are used. A slice never outlasts the window of
// its limit.
type PrepaidSlices struct {
	client  *Client
	options SliceOptions
	closed  context.Context
	close   context.CancelFunc
	keepers sync.WaitGroup

	mutex sync.Mutex
	// Keys that have a keeper. Nil while the first slice is being reserved, or was refused.
	slices map[counterKey]*slice
}

// slice is a number of hits that this process may spend.
type slice struct {
	reservation *Reservation
	// From an instant before that of the server, so the slice ends no later than there.
	begin, until time.Time
	left         uint64
	// Wakes the keeper when little is left.
	low chan struct{}
}

// NewPrepaidSlices returns slices that are reserved by this client. Close them before it.
func NewPrepaidSlices(client *Client, options SliceOptions) (*PrepaidSlices, error) {
	setDefault(&options.Hits, 100)
	setDefault(&options.TTL, 5*time.Second)
	setDefault(&options.MaxKeys, 100)
	if options.TTL < time.Millisecond || options.TTL > 24*time.Hour || options.MaxKeys < 0 {
		return nil, errors.New("tollgate: the TTL of slices is not within 1 ms to 24 h, or MaxKeys is negative")
	}
	closed, end := context.WithCancel(context.Background())
	return &PrepaidSlices{
		client: client, options: options, closed: closed, close: end, slices: map[counterKey]*slice{},
	}, nil
}

// Check spends hits of the slice of the request's counters. Without a slice, or if it has too few hits left, it is
// [Client.Check]. A request with more hits than a slice, with an id, or with a descriptor that has hits of its own has no
// slice.
func (p *PrepaidSlices) Check(ctx context.Context, request Request) (Decision, error) {
	start := time.Now()
	hits := max(request.Hits, 1)
	if !request.hasOwnHits() && hits <= p.options.Hits && request.RequestID == "" {
		key := request.counters()
		decision, spent, kept := p.spend(key, hits, start)
		if spent {
			p.client.options.Metrics.Checked(Prepaid, time.Since(start))
			return decision, nil
		}
		if !kept {
			p.start(key, &request)
		}
	}
	return p.client.Check(ctx, request)
}

// Close settles all slices at the hits that were spent, which takes at most seven timeouts of the client and a second. Checks from
// then on ask the server.
func (p *PrepaidSlices) Close() {
	p.mutex.Lock()
	p.close()
	p.mutex.Unlock()
	p.keepers.Wait()
}

// spend says whether the hits were spent, and whether the key has a keeper.
func (p *PrepaidSlices) spend(key counterKey, hits uint64, now time.Time) (decision Decision, spent, kept bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	slice, kept := p.slices[key]
	if slice == nil || !now.Before(slice.until) {
		return Decision{}, false, kept
	}
	spent = hits <= slice.left
	if spent {
		slice.left -= hits
	}
	if !spent || slice.left <= p.options.Hits/4 {
		select {
		case slice.low <- struct{}{}:
		default:
			// The keeper knows.
		}
	}
	if !spent {
		return Decision{}, false, kept
	}
	decision = slice.reservation.Decision.after(now.Sub(slice.begin))
	decision.Local = true
	for i := range decision.Limits {
		decision.Limits[i].Remaining += slice.left
	}
	return decision, true, kept
}

// start starts a keeper, unless there are too many.
func (p *PrepaidSlices) start(key counterKey, request *Request) {
	message, err := request.message()
	if err != nil {
		// The client says and counts it.
		return
	}
	message.Hits = p.options.Hits
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if _, kept := p.slices[key]; kept || len(p.slices) >= p.options.MaxKeys || p.closed.Err() != nil {
		return
	}
	p.slices[key] = nil
	p.keepers.Go(func() { p.keep(key, message) })
}

// keep keeps a slice of one key until it is refused, not used in its time, or closed.
func (p *PrepaidSlices) keep(key counterKey, message *pb.Request) {
	for {
		next := p.reserve(key, message)
		if next == nil {
			break
		}
		p.settle(p.replace(key, next))
		if !p.await(next) {
			break
		}
	}
	p.settle(p.remove(key))
}

// await waits until the slice is to be renewed. It is false if there shall be no other one.
func (p *PrepaidSlices) await(slice *slice) bool {
	timer := time.NewTimer(time.Until(slice.until) / 4 * 3)
	defer timer.Stop()
	select {
	case <-slice.low:
		return true
	case <-timer.C:
		p.mutex.Lock()
		defer p.mutex.Unlock()
		return slice.left < p.options.Hits
	case <-p.closed.Done():
		return false
	}
}

// reserve returns nil if the slice is refused, after a pause.
func (p *PrepaidSlices) reserve(key counterKey, message *pb.Request) *slice {
	begin := time.Now()
	terms := Terms{TTL: p.options.TTL, OnExpiry: Charge}
	// Not the context of a caller: the slice is for all of them.
	reservation, err := p.client.reserve(context.Background(), message, key, terms)
	if err != nil {
		return nil
	}
	decision := &reservation.Decision
	// A turn in a queue cannot be spent later.
	if reservation.id != "" && decision.NoAnswer == nil && decision.Delay == 0 {
		// Hits of a window that has ended must not be spent in the next one.
		lasts := p.options.TTL
		for _, limit := range decision.Limits {
			lasts = min(lasts, limit.ResetAfter)
		}
		if lasts >= minSliceTime {
			return &slice{
				reservation: reservation, begin: begin, until: begin.Add(lasts), left: p.options.Hits,
				low: make(chan struct{}, 1),
			}
		}
	}
	// May be held without an answer. If it cannot be given back, it stays charged.
	p.end(func() error {
		_, err := reservation.Cancel(context.Background())
		return err
	})
	pause := maxRefusedPause
	if decision.RetryAfter > 0 {
		pause = min(pause, decision.RetryAfter)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-p.closed.Done():
	}
	return nil
}

// replace returns the slice before.
func (p *PrepaidSlices) replace(key counterKey, next *slice) *slice {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	before := p.slices[key]
	p.slices[key] = next
	return before
}

func (p *PrepaidSlices) remove(key counterKey) *slice {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	last := p.slices[key]
	delete(p.slices, key)
	return last
}

// settle takes a slice that cannot be spent any more.
func (p *PrepaidSlices) settle(slice *slice) {
	if slice == nil {
		return
	}
	settled := p.end(func() error {
		_, err := slice.reservation.Settle(context.Background(), p.options.Hits-slice.left)
		return err
	})
	if !settled && slice.left > 0 {
		p.client.options.Metrics.Lost(slice.left)
	}
}

// end ends a reservation, and repeats it twice if there is no answer. A repeated end counts once.
func (p *PrepaidSlices) end(call func() error) bool {
	for _, pause := range endPauses {
		if call() == nil {
			return true
		}
		time.Sleep(pause)
	}
	return call() == nil
}
