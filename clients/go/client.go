// Package tollgate asks a Tollgate server whether requests may pass.
//
// Create one [Client] for the process and share it between goroutines. It balances calls over all addresses of the
// server's name, sends concurrent checks together, and answers for keys that are known to be refused. If the server
// gives no answer in time, [Options.OnNoAnswer] decides.
//
// The packages httplimit and grpclimit have middleware for servers.
package tollgate

//go:generate go run github.com/bufbuild/buf/cmd/buf@v1.55.1 generate

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "example.com/tollgate/gen/tollgate/v1"
)

// Client asks one Tollgate, which may have many replicas.
type Client struct {
	options    Options
	connection *grpc.ClientConn
	server     pb.RateLimiterClient
	batcher    *batcher
	denials    *denyCache
	closed     atomic.Bool
}

// New returns a client of the target, a gRPC name such as "tollgate.example:8081" or "unix:/run/tollgate.sock". It does
// not wait for the connection.
func New(target string, options Options) (*Client, error) {
	options, err := options.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("tollgate: %w", err)
	}
	connection, err := options.dial(target)
	if err != nil {
		return nil, err
	}
	server := pb.NewRateLimiterClient(connection)
	return &Client{
		options:    options,
		connection: connection,
		server:     server,
		batcher:    newBatcher(server, &options),
		denials:    newDenyCache(options.DenyCacheKeys, options.DenyCacheMax),
	}, nil
}

// Close ends the connection, and the calls under way. Calls from then on have no answer.
func (c *Client) Close() error {
	c.closed.Store(true)
	return c.connection.Close()
}

// Check charges the hits of a request if it is allowed. It returns an [*InvalidRequestError] if the request is invalid,
// and the error of the context if the caller cancels it. A check of a context that is canceled already is not sent.
// Otherwise there is a decision.
func (c *Client) Check(ctx context.Context, request Request) (Decision, error) {
	start := time.Now()
	decision, outcome, err := c.check(ctx, &request, start)
	c.options.Metrics.Checked(outcome, time.Since(start))
	return decision, err
}

func (c *Client) check(caller context.Context, request *Request, now time.Time) (Decision, Outcome, error) {
	message, err := request.countedMessage()
	if err != nil {
		return Decision{}, Failed, err
	}
	key, hits := request.counters(), request.hits()
	if request.RequestID == "" {
		if decision, denied := c.denials.denied(key, hits, now); denied {
			return decision, DeniedLocally, nil
		}
	}
	c.denials.begin(key)
	defer c.denials.end(key)
	ctx, cancel := context.WithTimeout(caller, c.options.Timeout)
	defer cancel()
	reply := c.batcher.check(ctx, message)
	decision, err := c.conclude(ctx, reply.answer, reply.err)
	switch {
	case err != nil:
		return decision, Failed, err
	case reply.err == c.batcher.full:
		return decision, QueueFull, nil
	case decision.NoAnswer != nil:
		return decision, NoAnswer, nil
	case decision.Allowed:
		return decision, Allowed, nil
	}
	c.denials.refuse(key, hits, decision, reply.sent)
	return decision, Denied, nil
}

// Peek answers what is left, and charges nothing. The decision is a denial if a limit lets nothing pass now. Errors are
// those of [Client.Check].
func (c *Client) Peek(ctx context.Context, request Request) (Decision, error) {
	message, err := request.message()
	if err != nil {
		return Decision{}, err
	}
	message.Hits = 0
	for _, descriptor := range message.Descriptors {
		descriptor.Hits = nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	response, err := c.server.Peek(ctx, &pb.PeekRequest{Requests: []*pb.Request{message}})
	return c.concludeOnly(ctx, response.GetAnswers(), err)
}

// Refund gives the hits of an earlier check back. No decision stands in for a missing answer: it is a [*NoAnswerError],
// and the hits may have been given back or not.
func (c *Client) Refund(ctx context.Context, request Request) (Decision, error) {
	message, err := request.countedMessage()
	if err != nil {
		return Decision{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	response, err := c.server.Refund(ctx, &pb.RefundRequest{Requests: []*pb.Request{message}})
	// Also without an answer, because the server may have given the hits back.
	c.denials.refund(request.counters(), time.Now())
	decision, err := c.concludeOnly(ctx, response.GetAnswers(), err)
	if err == nil && decision.NoAnswer != nil {
		err = decision.NoAnswer
	}
	return decision, err
}

// concludeOnly concludes a call with one request.
func (c *Client) concludeOnly(ctx context.Context, answers []*pb.Answer, err error) (Decision, error) {
	if answers, err = answersTo(1, answers, err); err != nil {
		return c.conclude(ctx, nil, err)
	}
	return c.conclude(ctx, answers[0], nil)
}

// conclude makes a decision from an answer or from the reason why there is none. The context is that of the call.
func (c *Client) conclude(ctx context.Context, answer *pb.Answer, err error) (Decision, error) {
	var decision Decision
	if err == nil {
		decision, err = decisionOf(answer)
	}
	if err == nil {
		return decision, nil
	}
	err = c.failure(ctx, err)
	if noAnswer := (*NoAnswerError)(nil); errors.As(err, &noAnswer) {
		return Decision{Allowed: c.options.OnNoAnswer == Allow, Source: SourceDefault, NoAnswer: noAnswer}, nil
	}
	return Decision{}, err
}

// failure says why a call has no result: it is an [*InvalidRequestError], the error of a context that the caller
// canceled, or a [*NoAnswerError].
func (c *Client) failure(ctx context.Context, err error) error {
	reason := status.Convert(err)
	deadline, _ := ctx.Deadline()
	isLate := errors.Is(err, context.DeadlineExceeded) || reason.Code() == codes.DeadlineExceeded
	switch {
	case reason.Code() == codes.InvalidArgument:
		return &InvalidRequestError{reason.Message()}
	case errors.Is(ctx.Err(), context.Canceled):
		return ctx.Err()
	case c.closed.Load():
		return &NoAnswerError{codes.Canceled, "the client is closed"}
	// The server may say the same of a call of its own.
	case isLate && !time.Now().Before(deadline):
		return &NoAnswerError{codes.DeadlineExceeded, "no answer in time"}
	default:
		return &NoAnswerError{reason.Code(), reason.Message()}
	}
}
