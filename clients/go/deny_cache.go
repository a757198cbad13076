package tollgate

import (
	"container/list"
	"slices"
	"sync"
	"time"
)

// denyCache remembers refusals until the instant from which the same request may pass. Its instants have monotonic
// clock readings.
type denyCache struct {
	size    int
	maxTime time.Duration

	mutex sync.Mutex
	keys  map[counterKey]*list.Element
	// Invariant: has the values of keys, the oldest in front.
	order    *list.List
	underWay map[counterKey]*checks
}

// checks are those of one key that are under way.
type checks struct {
	number int
	// The server may have decided those that were sent earlier before the last refund or change of limits.
	refunded time.Time
}

// refusal is what is known of one key.
type refusal struct {
	key counterKey
	// Hits of each descriptor that were refused: as many or more are refused too.
	hits     []uint64
	decision Decision
	// The check was sent at this instant; times of the decision count from here or later.
	sent time.Time
	// The key is asked for again from this instant on.
	until time.Time
}

// newDenyCache returns a cache of at most size keys; none if size is negative.
func newDenyCache(size int, maxTime time.Duration) *denyCache {
	return &denyCache{
		size: size, maxTime: maxTime, keys: map[counterKey]*list.Element{}, order: list.New(),
		underWay: map[counterKey]*checks{},
	}
}

// denied returns the decision on a request that is certain to be refused at this instant.
func (c *denyCache) denied(key counterKey, hits []uint64, now time.Time) (Decision, bool) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	element, known := c.keys[key]
	if !known {
		return Decision{}, false
	}
	found := element.Value.(*refusal)
	if !now.Before(found.until) || !covers(hits, found.hits) {
		return Decision{}, false
	}
	return found.decision.after(SourceDenyCache, now.Sub(found.sent)), true
}

// begin says that a check of this key is under way, until end.
func (c *denyCache) begin(key counterKey) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	each, known := c.underWay[key]
	if !known {
		each = &checks{}
		c.underWay[key] = each
	}
	each.number++
}

func (c *denyCache) end(key counterKey) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	each := c.underWay[key]
	each.number--
	if each.number == 0 {
		delete(c.underWay, key)
	}
}

// refuse remembers a refusal, if it ends, of a check that was sent at this instant and is under way.
func (c *denyCache) refuse(key counterKey, hits []uint64, decision Decision, sent time.Time) {
	if c.size <= 0 || decision.RetryAfter <= 0 {
		return
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if each, known := c.underWay[key]; known && sent.Before(each.refunded) {
		return
	}
	entry := c.entry(key)
	entry.hits, entry.decision, entry.sent = hits, decision, sent
	// The server decided after this instant, so the local refusal never outlasts its own.
	entry.until = sent.Add(min(decision.RetryAfter, c.maxTime))
}

// refund forgets the refusals of a key whose hits were given back at this instant.
func (c *denyCache) refund(key counterKey, now time.Time) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if element, known := c.keys[key]; known {
		c.order.Remove(element)
		delete(c.keys, key)
	}
	if each, known := c.underWay[key]; known {
		each.refunded = now
	}
}

// clear forgets the refusals of all checks that were sent before this instant.
func (c *denyCache) clear(now time.Time) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	clear(c.keys)
	c.order.Init()
	for _, each := range c.underWay {
		each.refunded = now
	}
}

// entry returns the entry of a key as the newest one. It drops the oldest one if there are too many.
func (c *denyCache) entry(key counterKey) *refusal {
	if element, known := c.keys[key]; known {
		c.order.MoveToBack(element)
		return element.Value.(*refusal)
	}
	if c.order.Len() >= c.size {
		oldest := c.order.Remove(c.order.Front()).(*refusal)
		delete(c.keys, oldest.key)
	}
	entry := &refusal{key: key}
	c.keys[key] = c.order.PushBack(entry)
	return entry
}

// covers says whether each number is as large as that of other.
func covers(hits, other []uint64) bool {
	return slices.EqualFunc(hits, other, func(a, b uint64) bool { return a >= b })
}
