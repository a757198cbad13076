package tollgate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
)

// SliceOptions are the size of prepaid slices. The zero value of each field is its default.
type SliceOptions struct {
	// Hits of each slice; at most what the limit has left, or there is no slice. Default: 100.
	Hits uint64
	// TTL is the time for which a slice may be spent, 1 ms to 24 h. Default: 5 s.
	TTL time.Duration
	// KeysMax is the number of keys with a slice, at most a million; checks of further keys ask the server. Default: 100.
	KeysMax int
}

// withDefaults fills in the defaults.
func (o SliceOptions) withDefaults() (SliceOptions, error) {
	return o, errors.Join(
		option("Hits", &o.Hits, 100, 1, math.MaxUint64),
		option("TTL", &o.TTL, 5*time.Second, time.Millisecond, ttlMax),
		option("KeysMax", &o.KeysMax, 100, 1, million),
	)
}

// PrepaidSlices allow requests of hot keys without a call for each: a part of the limit is reserved and spent here. The
// hits of a slice count from its reservation, so no more passes than the limit. If the process ends without
// [PrepaidSlices.Close], slices stay charged.
//
// While clients hold slices, others may be refused although not all hits are used. A slice never outlasts the window of
// its limit.
type PrepaidSlices struct {
	client *Client

	mutex sync.Mutex
	table sliceTable
	// Wake a key when something is due.
	timers map[counterKey]*time.Timer
	// Says that the table may have forgotten a key.
	forgotten *sync.Cond
}

// NewPrepaidSlices returns slices that are reserved by this client. Close them before it.
func NewPrepaidSlices(client *Client, options SliceOptions) (*PrepaidSlices, error) {
	options, err := options.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("tollgate: %w", err)
	}
	slices := &PrepaidSlices{
		client: client,
		table:  sliceTable{options: options, keys: map[counterKey]*sliceKey{}},
		timers: map[counterKey]*time.Timer{},
	}
	slices.forgotten = sync.NewCond(&slices.mutex)
	return slices, nil
}

// Check spends hits of the slice of the request's counters. Without a slice, or if it has too few hits left, it is
// [Client.Check]. A request with more hits than a slice, with an id, or with hits or OnExpiry of a descriptor has
// no slice.
func (p *PrepaidSlices) Check(ctx context.Context, request Request) (Decision, error) {
	start := time.Now()
	if p.table.serves(&request) {
		if decision, spent := p.spend(&request, start); spent {
			p.client.options.Metrics.Checked(Prepaid, time.Since(start))
			return decision, nil
		}
	}
	return p.client.Check(ctx, request)
}

// Close settles all slices at the hits that were spent, which takes at most four timeouts of the client and half a
// second. Checks from then on ask the server.
func (p *PrepaidSlices) Close() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	now := time.Now()
	for key, actions := range p.table.close(now) {
		p.begin(key, actions, now)
	}
	for len(p.table.keys) > 0 {
		p.forgotten.Wait()
	}
}

func (p *PrepaidSlices) spend(request *Request, now time.Time) (Decision, bool) {
	key := request.counters()
	p.mutex.Lock()
	defer p.mutex.Unlock()
	decision, spent, actions := p.table.check(key, max(request.Hits, 1), now)
	if actions.isEmpty() {
		return decision, spent
	}
	if known := p.table.keys[key]; known != nil && known.message == nil {
		// If it is invalid, the client says and counts it.
		if message, err := request.message(); err == nil {
			message.Hits = p.table.options.Hits
			known.message = message
		}
	}
	p.begin(key, actions, now)
	return decision, spent
}

// begin begins the calls of a key, and sets its timer. It is called under the lock.
func (p *PrepaidSlices) begin(key counterKey, actions sliceActions, now time.Time) {
	if actions.reserve {
		go p.reserve(key, p.table.keys[key])
	}
	for _, end := range actions.ends {
		go p.end(key, end)
	}
	if actions.lost > 0 {
		p.client.options.Metrics.Lost(actions.lost)
	}
	if timer := p.timers[key]; timer != nil {
		timer.Stop()
		delete(p.timers, key)
	}
	if at, known := p.table.nextDue(key, now); known {
		p.timers[key] = time.AfterFunc(at.Sub(now), func() {
			p.step(key, func(now time.Time) sliceActions { return p.table.due(key, now) })
		})
	}
	if p.table.closed {
		p.forgotten.Broadcast()
	}
}

// step changes the state of a key.
func (p *PrepaidSlices) step(key counterKey, change func(now time.Time) sliceActions) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	now := time.Now()
	p.begin(key, change(now), now)
}

func (p *PrepaidSlices) reserve(key counterKey, known *sliceKey) {
	var reservation *Reservation
	if known.message != nil {
		terms := Terms{TTL: p.table.options.TTL, OnExpiry: Charge}
		// Not the context of a caller: the slice is for all of them. An error says that the request is invalid.
		reservation, _ = p.client.reserve(context.Background(), known.message, key, terms)
	}
	p.step(key, func(now time.Time) sliceActions { return p.table.reserved(key, reservation, now) })
}

func (p *PrepaidSlices) end(key counterKey, end *sliceEnd) {
	var err error
	if end.cancels {
		_, err = end.reservation.Cancel(context.Background())
	} else {
		_, err = end.reservation.Settle(context.Background(), end.spent)
	}
	p.step(key, func(now time.Time) sliceActions { return p.table.ended(key, end, err, now) })
}
