package tollgate

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "example.com/tollgate/gen/tollgate/v1"
)

// Terms say how hits are held. The zero value of each field is its default.
type Terms struct {
	// TTL is the time until the reservation expires: 1 ms to 24 h. Default: 60 s.
	TTL time.Duration
	// OnExpiry says what happens then to the hits of each descriptor without its own. Default: Release.
	OnExpiry OnExpiry
}

// withDefaults fills in the defaults.
func (t Terms) withDefaults() (Terms, error) {
	if err := option("TTL", &t.TTL, time.Minute, time.Millisecond, ttlMax); err != nil {
		return t, &InvalidRequestError{err.Error()}
	}
	return t, nil
}

// OnExpiry is what happens to a reservation that is neither settled nor canceled before it expires.
type OnExpiry = pb.ReserveRequest_OnExpiry

const (
	// Release gives its hits back.
	Release = pb.ReserveRequest_RELEASE
	// Charge lets its hits stay charged.
	Charge = pb.ReserveRequest_CHARGE
)

// Reservation holds hits until it is known how many were used, if its decision allows the request.
type Reservation struct {
	// Decision says whether the request may go on. If the default has decided, the hits may be held or not: settle or
	// cancel them nevertheless.
	Decision Decision
	// Ended says whether a reservation of its id was made before and is not open any more. Then nothing is held.
	Ended bool

	client *Client
	// What was reserved. A copy: a settlement names the same descriptors, whatever the caller has changed since.
	request *pb.Request
	key     counterKey
	// Empty if nothing is held.
	id string
}

// Settlement is how a reservation has ended.
type Settlement struct {
	// Limits are those that apply, in the order of the descriptors; none if nothing was held.
	Limits []SettledLimit
	// Unknown says whether the outcome of a limit is SettledUnknown.
	Unknown bool
}

// SettledLimit is one limit of a reservation that has ended.
type SettledLimit struct {
	// Descriptor is the index of the descriptor in the request.
	Descriptor int
	// Rule is the name of the rule, or its path. It is empty for a limit that the caller sent.
	Rule    string
	Outcome SettledOutcome
	// Reserved are the hits that were held; 0 if the outcome is SettledReleased or SettledUnknown.
	Reserved uint64
	// NotCharged are, of the hits that were used, those that were not charged because the limit does not go as far.
	NotCharged uint64
	Remaining  uint64
	// ResetAfter is the time until the limit is unused.
	ResetAfter time.Duration
}

// SettledOutcome is what was known of a reservation at its settlement.
type SettledOutcome = pb.SettledLimit_Outcome

const (
	// SettledOpen: it was open.
	SettledOpen = pb.SettledLimit_OPEN
	// SettledCharged: it had expired and stayed charged. The charge was adjusted.
	SettledCharged = pb.SettledLimit_CHARGED
	// SettledReleased: it had expired and was released. All hits that were used were charged now.
	SettledReleased = pb.SettledLimit_RELEASED
	// SettledUnknown: nothing. All hits that were used were charged now.
	SettledUnknown = pb.SettledLimit_UNKNOWN
)

// Reserve holds the hits of a request until [Reservation.Settle] says how many were used. All limits hold them, or none
// does. The server is always asked; without an answer, [Options.OnNoAnswer] decides. Errors are those of
// [Client.Check]. If the caller cancels the context, the hits may be held until they expire.
func (c *Client) Reserve(ctx context.Context, request Request, terms Terms) (*Reservation, error) {
	message, err := request.message()
	if err != nil {
		return nil, err
	}
	return c.reserve(ctx, proto.CloneOf(message), request.counters(), terms)
}

// newID returns 128 random bits.
func newID() string {
	var id [16]byte
	// Never fails.
	_, _ = rand.Read(id[:])
	return hex.EncodeToString(id[:])
}

// reserve keeps the message.
func (c *Client) reserve(
	ctx context.Context, message *pb.Request, key counterKey, terms Terms,
) (*Reservation, error) {
	terms, err := terms.withDefaults()
	if err != nil {
		return nil, err
	}
	// Chosen here, so that hits can be settled that were held without an answer.
	id := newID()
	reservation := &Reservation{client: c, request: message, key: key, id: id}
	reserve := &pb.ReserveRequest{
		Domain:        message.Domain,
		Descriptors:   message.Descriptors,
		Amount:        message.Hits,
		Ttl:           durationpb.New(terms.TTL),
		ReservationId: id,
		OnExpiry:      terms.OnExpiry,
	}
	if err := checkSize(reserve); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	response, err := c.server.Reserve(ctx, reserve)
	if reservation.Decision, err = c.conclude(ctx, response.GetAnswer(), err); err != nil {
		return nil, err
	}
	if reservation.Decision.NoAnswer == nil {
		reservation.id = response.GetReservationId()
		reservation.Ended = response.GetEnded()
	}
	return reservation, nil
}

// Settle ends the reservation at the hits that were used, for each descriptor without hits of its own; the others keep
// theirs. It gives the rest back, or charges what is missing. If nothing is held, it does nothing.
//
// The call does not end with the context, because what was used is charged also if the caller goes away; only
// [Options.Timeout] bounds it. If there is no answer, it returns a [*NoAnswerError]. Repeat the call then: the hits
// count once.
func (r *Reservation) Settle(ctx context.Context, actual uint64) (Settlement, error) {
	return r.SettleEach(ctx, actual, nil)
}

// SettleEach is [Reservation.Settle] with hits of single descriptors, by their index. They replace the hits with which
// these were reserved, and the actual hits. An index without a descriptor is an [*InvalidRequestError].
func (r *Reservation) SettleEach(ctx context.Context, actual uint64, hits map[int]uint64) (Settlement, error) {
	descriptors := make([]*pb.Descriptor, len(r.request.Descriptors))
	for i, reserved := range r.request.Descriptors {
		descriptors[i] = &pb.Descriptor{Entries: reserved.Entries, Limit: reserved.Limit, Hits: reserved.Hits}
	}
	for i, used := range hits {
		if i < 0 || i >= len(descriptors) {
			problem := fmt.Sprintf("hits of descriptor %d, of %d descriptors", i, len(descriptors))
			return Settlement{}, &InvalidRequestError{problem}
		}
		descriptors[i].Hits = &used
	}
	return r.end(ctx, func(ctx context.Context) (settled, error) {
		return r.client.server.Settle(ctx, &pb.SettleRequest{
			Domain: r.request.Domain, Descriptors: descriptors, ReservationId: r.id, Actual: actual,
		})
	})
}

// Cancel ends the reservation and gives all hits back. The context and errors are as for [Reservation.Settle].
func (r *Reservation) Cancel(ctx context.Context) (Settlement, error) {
	return r.end(ctx, func(ctx context.Context) (settled, error) {
		return r.client.server.Cancel(ctx, &pb.CancelRequest{
			Domain: r.request.Domain, Descriptors: r.request.Descriptors, ReservationId: r.id,
		})
	})
}

// settled is the answer to both ends of a reservation.
type settled interface {
	GetLimits() []*pb.SettledLimit
	GetUnknown() bool
}

func (r *Reservation) end(ctx context.Context, call func(context.Context) (settled, error)) (Settlement, error) {
	if r.id == "" {
		return Settlement{}, nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.client.options.Timeout)
	defer cancel()
	response, err := call(ctx)
	// Also without an answer, because the server may have given hits back.
	r.client.denials.refund(r.key, time.Now())
	if err != nil {
		return Settlement{}, r.client.failure(ctx, err)
	}
	settlement := Settlement{
		Limits: make([]SettledLimit, len(response.GetLimits())), Unknown: response.GetUnknown(),
	}
	for i, limit := range response.GetLimits() {
		settlement.Limits[i] = SettledLimit{
			Descriptor: int(limit.GetDescriptorIndex()),
			Rule:       limit.GetRule(),
			Outcome:    limit.GetOutcome(),
			Reserved:   limit.GetReserved(),
			NotCharged: limit.GetNotCharged(),
			Remaining:  limit.GetRemaining(),
			ResetAfter: limit.GetResetAfter().AsDuration(),
		}
	}
	return settlement, nil
}
