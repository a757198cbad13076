package tollgate

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	pb "example.com/tollgate/gen/tollgate/v1"
)

// A message has at most 4 MiB, of which the request takes all but its tag and length.
const requestBytesMax = 4<<20 - 16

// Request names what is limited. Its descriptors are decided together: it is denied if one of them is over its limit.
type Request struct {
	// Domain is the set of rules that applies.
	Domain string
	// Descriptors has at least one descriptor.
	Descriptors []Descriptor
	// Hits of each descriptor without hits of its own; 0 means 1.
	Hits uint64
	// RequestID makes a check or a refund count once: one that is repeated with the same id within the window of the
	// server is answered as the first one. The server decides such a check, not the deny cache nor a slice. At most 63
	// bytes; other calls ignore it.
	RequestID string
}

// Descriptor leads to one rule, and to one counter of this rule. [Describe] makes one.
type Descriptor struct {
	// Entries are in the order of the levels of the rules.
	Entries []Entry
	// Limit replaces the limit of the rules, if it is not nil.
	Limit *Limit
	// Hits replaces the hits of the request, if it is not nil; 0 charges nothing.
	Hits *uint64
	// OnExpiry replaces that of the terms of a reservation, if it is not nil: Charge.Enum(). Other calls ignore it.
	OnExpiry *OnExpiry
}

// Entry is one part of a descriptor. It matches one level of the rules.
type Entry struct {
	Key, Value string
}

// Limit is sent instead of the one in the rules.
type Limit struct {
	RequestsPerUnit uint32
	Unit            Unit
}

// Unit is the window of a limit.
type Unit = pb.Limit_Unit

// The windows of limits.
const (
	// UnitUnknown is valid in answers only: the window is none of the others.
	UnitUnknown = pb.Limit_UNKNOWN
	Second      = pb.Limit_SECOND
	Minute      = pb.Limit_MINUTE
	Hour        = pb.Limit_HOUR
	Day         = pb.Limit_DAY
	Week        = pb.Limit_WEEK
	Month       = pb.Limit_MONTH
	Year        = pb.Limit_YEAR
)

// InvalidRequestError says what is wrong with a request. No limit decided it.
type InvalidRequestError struct {
	Message string
}

func (e *InvalidRequestError) Error() string {
	return "tollgate: invalid request: " + e.Message
}

// Describe returns a descriptor with one entry.
func Describe(key, value string) Descriptor {
	return Descriptor{Entries: []Entry{{key, value}}}
}

// And returns the descriptor with one more entry.
func (d Descriptor) And(key, value string) Descriptor {
	d.Entries = append(slices.Clip(d.Entries), Entry{key, value})
	return d
}

// message translates the request, without its id. It finds text that is not UTF-8, which would fail a whole batch, and
// a request that is larger than a message may be, which the server would refuse as it refuses an overload.
func (r *Request) message() (*pb.Request, error) {
	message := &pb.Request{Domain: r.Domain, Hits: r.Hits, Descriptors: make([]*pb.Descriptor, len(r.Descriptors))}
	if !utf8.ValidString(r.Domain) {
		return nil, &InvalidRequestError{"the domain is not UTF-8"}
	}
	for i, descriptor := range r.Descriptors {
		entries := make([]*pb.Entry, len(descriptor.Entries))
		for j, entry := range descriptor.Entries {
			if !utf8.ValidString(entry.Key) || !utf8.ValidString(entry.Value) {
				return nil, &InvalidRequestError{fmt.Sprintf("entry %d of descriptor %d is not UTF-8", j, i)}
			}
			entries[j] = &pb.Entry{Key: entry.Key, Value: entry.Value}
		}
		message.Descriptors[i] = &pb.Descriptor{Entries: entries, Hits: descriptor.Hits, OnExpiry: descriptor.OnExpiry}
		if limit := descriptor.Limit; limit != nil {
			message.Descriptors[i].Limit = &pb.Limit{RequestsPerUnit: limit.RequestsPerUnit, Unit: limit.Unit}
		}
	}
	if err := checkSize(message); err != nil {
		return nil, err
	}
	return message, nil
}

// countedMessage translates the request with its id, for a check or a refund.
func (r *Request) countedMessage() (*pb.Request, error) {
	if !utf8.ValidString(r.RequestID) {
		return nil, &InvalidRequestError{"the request id is not UTF-8"}
	}
	message, err := r.message()
	if err != nil {
		return nil, err
	}
	message.RequestId = r.RequestID
	if err := checkSize(message); err != nil {
		return nil, err
	}
	return message, nil
}

func checkSize(message proto.Message) error {
	if size := proto.Size(message); size > requestBytesMax {
		return &InvalidRequestError{fmt.Sprintf("the request has %d bytes, of at most %d", size, requestBytesMax)}
	}
	return nil
}

// counterKey stands for the counters of a request. It has a fixed size, whatever the request has.
type counterKey [sha256.Size]byte

// counters is equal for requests that differ in their hits only.
func (r *Request) counters() counterKey {
	key := appendText(nil, r.Domain)
	for _, descriptor := range r.Descriptors {
		key = binary.AppendUvarint(key, uint64(len(descriptor.Entries)))
		for _, entry := range descriptor.Entries {
			key = appendText(appendText(key, entry.Key), entry.Value)
		}
		limit, unit := uint64(math.MaxUint64), uint64(0)
		if descriptor.Limit != nil {
			limit, unit = uint64(descriptor.Limit.RequestsPerUnit), uint64(descriptor.Limit.Unit)
		}
		key = binary.AppendUvarint(binary.AppendUvarint(key, limit), unit)
	}
	return sha256.Sum256(key)
}

// hits are those of each descriptor.
func (r *Request) hits() []uint64 {
	hits := make([]uint64, len(r.Descriptors))
	for i, descriptor := range r.Descriptors {
		hits[i] = max(r.Hits, 1)
		if descriptor.Hits != nil {
			hits[i] = *descriptor.Hits
		}
	}
	return hits
}

// hasOwnTerms says whether a descriptor has hits or an end of its own.
func (r *Request) hasOwnTerms() bool {
	return slices.ContainsFunc(r.Descriptors, func(each Descriptor) bool {
		return each.Hits != nil || each.OnExpiry != nil
	})
}

func appendText(key []byte, text string) []byte {
	return append(binary.AppendUvarint(key, uint64(len(text))), text...)
}
