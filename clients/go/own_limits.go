package tollgate

import (
	"context"
	"fmt"
	"iter"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "example.com/tollgate/gen/tollgate/v1"
)

// LimitResult is what has become of the limit of its own of one key.
type LimitResult struct {
	// Limit applies now. It is nil if the numbers of the rule do, or if Err is not nil and nothing is known.
	Limit *pb.OwnLimit
	// Rule is the name of the rule, or its path.
	Rule string
	// Err says why nothing was read or changed, if it is not nil.
	Err *LimitError
}

// LimitError says why the limit of its own of one key was not read or changed.
type LimitError struct {
	Code codes.Code
	// Reason is a name, such as OUT_OF_BOUNDS or OTHER_VERSION.
	Reason  string
	Message string
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("tollgate: %s: %s", e.Reason, e.Message)
}

// SetLimits gives keys limits of their own, in place of the numbers of their rules, with [Options.AdminToken]. If one is
// invalid, none is set. The results are in the order of the limits.
//
// Without an answer, or with a wrong token, it returns a [*NoAnswerError]: the limits may have been set or not. Other
// errors are those of [Client.Check].
func (c *Client) SetLimits(ctx context.Context, request *pb.SetLimitsRequest) ([]LimitResult, error) {
	defer c.forgetRefusals()
	response, err := callWithToken(ctx, c, c.server.SetLimits, request)
	return limitResults(len(request.GetLimits()), response.GetResults(), err)
}

// GetLimits reads the limits of their own of keys. Errors are those of [Client.SetLimits].
func (c *Client) GetLimits(ctx context.Context, domain string, keys ...Descriptor) ([]LimitResult, error) {
	named, err := (&Request{Domain: domain, Descriptors: keys}).message()
	if err != nil {
		return nil, err
	}
	request := &pb.GetLimitsRequest{Domain: domain, Descriptors: named.Descriptors}
	response, err := callWithToken(ctx, c, c.server.GetLimits, request)
	return limitResults(len(keys), response.GetResults(), err)
}

// ClearLimits removes the limits of their own of keys: the numbers of their rules apply again. Errors are those of
// [Client.SetLimits].
func (c *Client) ClearLimits(ctx context.Context, domain string, keys ...Descriptor) ([]LimitResult, error) {
	named, err := (&Request{Domain: domain, Descriptors: keys}).message()
	if err != nil {
		return nil, err
	}
	defer c.forgetRefusals()
	request := &pb.ClearLimitsRequest{Domain: domain, Descriptors: named.Descriptors}
	response, err := callWithToken(ctx, c, c.server.ClearLimits, request)
	return limitResults(len(keys), response.GetResults(), err)
}

// ListLimits reads the limits of their own of a domain, of all domains if it is empty, whose keys begin with these
// entries. It reads page by page, and ends after an error, which is one of those of [Client.SetLimits]. In a cluster they are
// those of all replicas.
func (c *Client) ListLimits(ctx context.Context, domain string, prefix ...Entry) iter.Seq2[*pb.OwnLimit, error] {
	return func(yield func(*pb.OwnLimit, error) bool) {
		request := &pb.ListLimitsRequest{Domain: domain}
		for _, entry := range prefix {
			request.Prefix = append(request.Prefix, &pb.Entry{Key: entry.Key, Value: entry.Value})
		}
		for {
			page, err := callWithToken(ctx, c, c.server.ListLimits, request)
			if err != nil {
				yield(nil, err)
				return
			}
			for _, limit := range page.GetLimits() {
				if !yield(limit, nil) {
					return
				}
			}
			request.PageToken = page.GetNextPageToken()
			if request.PageToken == "" {
				return
			}
		}
	}
}

// forgetRefusals is called also without an answer, because the server may have changed limits.
func (c *Client) forgetRefusals() {
	c.denials.clear(time.Now())
}

func callWithToken[Q proto.Message, A any](
	ctx context.Context, c *Client, method func(context.Context, Q, ...grpc.CallOption) (A, error), request Q,
) (A, error) {
	var none A
	// Finds text that is not UTF-8.
	if _, err := proto.Marshal(request); err != nil {
		return none, &InvalidRequestError{err.Error()}
	}
	if err := checkSize(request); err != nil {
		return none, err
	}
	if c.options.AdminToken != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+c.options.AdminToken)
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	response, err := method(ctx, request)
	if err != nil {
		return none, c.failure(ctx, err)
	}
	return response, nil
}

// limitResults translates the results for so many keys.
func limitResults(keys int, messages []*pb.LimitResult, err error) ([]LimitResult, error) {
	if err != nil {
		return nil, err
	}
	if len(messages) != keys {
		return nil, &NoAnswerError{codes.Internal, fmt.Sprintf("%d answers to %d requests", len(messages), keys)}
	}
	results := make([]LimitResult, keys)
	for i, message := range messages {
		results[i] = LimitResult{Limit: message.GetLimit(), Rule: message.GetRule()}
		if problem := message.GetError(); problem != nil {
			answer := status.FromProto(problem)
			results[i].Err = &LimitError{answer.Code(), reasonOf(answer), answer.Message()}
		}
	}
	return results, nil
}
