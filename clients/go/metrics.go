package tollgate

import "time"

// Metrics receives what the client counts. Its functions are called by many goroutines at once and must not block.
type Metrics interface {
	// Checked is called once for each check, with the time that it took.
	Checked(outcome Outcome, latency time.Duration)
	// Sent is called for each call to the server with checks, with the number of checks in it.
	Sent(batch int)
	// Lost is called with the hits of a slice that were not spent and stay charged, because its settlement had no answer.
	Lost(hits uint64)
}

// Outcome is how a check ended.
type Outcome int

const (
	// Allowed by the server.
	Allowed Outcome = iota
	// Denied by the server.
	Denied
	// DeniedLocally by the deny cache.
	DeniedLocally
	// NoAnswer: the server did not answer in time or at all, and the default decided.
	NoAnswer
	// QueueFull: too many checks waited for a call, and the default decided.
	QueueFull
	// Failed: the request is invalid, or the caller canceled it.
	Failed
	// Prepaid: allowed by a slice of the limit.
	Prepaid
)

// String returns the name of the outcome, as the value of a label.
func (o Outcome) String() string {
	names := [...]string{
		"allowed", "denied", "denied_locally", "no_answer", "queue_full", "failed", "prepaid",
	}
	return names[o]
}

// noMetrics counts nothing.
type noMetrics struct{}

func (noMetrics) Checked(Outcome, time.Duration) {}
func (noMetrics) Sent(int)                       {}
func (noMetrics) Lost(uint64)                    {}
