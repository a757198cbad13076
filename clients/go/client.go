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
}

// New returns a client of the target, a gRPC name such as "tollgate.example:8081" or "unix:/run/tollgate.sock". It does
// not wait for the connection.
func New(target string, options Options) (*Client, error) {
	options, err := options.withDefaults()
	if err != nil {
		return nil, err
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
		denials:    newDenyCache(options.DenyCacheSize, options.DenyCacheMax),
	}, nil
}

// Close ends the connection. Checks from then on have no answer.
func (c *Client) Close() error {
	return c.connection.Close()
}

// Check charges the hits of a request if it is allowed. It returns an [*InvalidRequestError] if the request is invalid,
// and the error of the context if the caller cancels it. Otherwise there is a decision.
func (c *Client) Check(ctx context.Context, request Request) (Decision, error) {
	start := time.Now()
	decision, outcome, err := c.check(ctx, &request, start)
	c.options.Metrics.Checked(outcome, time.Since(start))
	return decision, err
}

func (c *Client) check(caller context.Context, request *Request, now time.Time) (Decision, Outcome, error) {
	message, err := request.checkMessage()
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
	decision, err := c.conclude(caller, reply.answer, reply.err)
	switch {
	case err != nil:
		return decision, Failed, err
	case errors.Is(decision.NoAnswer, errQueueFull):
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
	timeout, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	response, err := c.server.Peek(timeout, &pb.PeekRequest{Requests: []*pb.Request{message}})
	answer, err := only(response.GetAnswers(), err)
	return c.conclude(ctx, answer, err)
}

// Refund gives the hits of an earlier check back. No decision stands in for a missing answer: it is an error, and the
// hits may have been given back or not.
func (c *Client) Refund(ctx context.Context, request Request) (Decision, error) {
	message, err := request.message()
	if err != nil {
		return Decision{}, err
	}
	timeout, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	response, err := c.server.Refund(timeout, &pb.RefundRequest{Requests: []*pb.Request{message}})
	c.denials.refund(request.counters(), time.Now())
	answer, err := only(response.GetAnswers(), err)
	decision, err := c.conclude(ctx, answer, err)
	if err == nil {
		err = decision.NoAnswer
	}
	return decision, err
}

// only returns the answer to a call with one request.
func only(answers []*pb.Answer, err error) (*pb.Answer, error) {
	if err == nil && len(answers) != 1 {
		err = status.Errorf(codes.Internal, "%d answers to one request", len(answers))
	}
	if err != nil {
		return nil, err
	}
	return answers[0], nil
}

// conclude makes a decision from an answer or from the reason why there is none.
func (c *Client) conclude(caller context.Context, answer *pb.Answer, err error) (Decision, error) {
	var decision Decision
	if err == nil {
		decision, err = decisionOf(answer)
	}
	switch {
	case err == nil:
		return decision, nil
	case status.Code(err) == codes.InvalidArgument:
		return Decision{}, &InvalidRequestError{status.Convert(err).Message()}
	case errors.Is(caller.Err(), context.Canceled):
		return Decision{}, caller.Err()
	default:
		return Decision{Allowed: c.options.OnNoAnswer == Allow, NoAnswer: err}, nil
	}
}
