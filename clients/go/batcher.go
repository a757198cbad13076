package tollgate

import (
	"container/list"
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "example.com/tollgate/gen/tollgate/v1"
)

// batcher collects checks while calls are under way, and sends them together when one of these returns. There is no
// timer: a check is sent at once if fewer calls are under way than may be.
type batcher struct {
	server   pb.RateLimiterClient
	metrics  Metrics
	callsMax int
	batchMax int
	queueMax int
	// Says that queueMax checks wait.
	full error

	mutex sync.Mutex
	calls int
	// Checks that wait. Invariant: empty unless callsMax calls are under way.
	queue *list.List
}

// queuedCheck is a check on its way.
type queuedCheck struct {
	request  *pb.Request
	deadline time.Time
	// Has room for the reply, so that the sender never waits for a caller that is gone.
	reply chan reply
}

// reply is the answer to one check, or the reason why there is none.
type reply struct {
	answer *pb.Answer
	err    error
	// When the check was sent.
	sent time.Time
}

func newBatcher(server pb.RateLimiterClient, options *Options) *batcher {
	return &batcher{
		server:   server,
		metrics:  options.Metrics,
		callsMax: options.CallsMax,
		batchMax: options.BatchMax,
		queueMax: options.QueueMax,
		full:     status.Errorf(codes.ResourceExhausted, "%d checks wait already", options.QueueMax),
		queue:    list.New(),
	}
}

// check waits for the answer until the deadline of the context, which must have one.
func (b *batcher) check(ctx context.Context, request *pb.Request) reply {
	// A caller that has gone charges nothing.
	if err := ctx.Err(); err != nil {
		return reply{err: err}
	}
	deadline, _ := ctx.Deadline()
	check := &queuedCheck{request, deadline, make(chan reply, 1)}
	place, err := b.admit(check)
	if err != nil {
		return reply{err: err}
	}
	select {
	case reply := <-check.reply:
		return reply
	case <-ctx.Done():
		b.withdraw(place)
		return reply{err: ctx.Err()}
	}
}

// admit sends the check, or returns its place in the queue.
func (b *batcher) admit(check *queuedCheck) (*list.Element, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.calls < b.callsMax {
		b.calls++
		go b.run([]*queuedCheck{check})
		return nil, nil
	}
	if b.queue.Len() >= b.queueMax {
		return nil, b.full
	}
	return b.queue.PushBack(check), nil
}

// withdraw removes a check from the queue, unless it was sent.
func (b *batcher) withdraw(place *list.Element) {
	if place == nil {
		return
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.queue.Remove(place)
}

// run sends batches until no check waits.
func (b *batcher) run(batch []*queuedCheck) {
	for len(batch) > 0 {
		b.send(batch)
		batch = b.next()
	}
}

// next takes the next batch from the queue. If there is none, the call of the caller is over.
func (b *batcher) next() []*queuedCheck {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	var batch []*queuedCheck
	for bytes := 0; b.queue.Len() > 0 && len(batch) < b.batchMax; {
		check := b.queue.Front().Value.(*queuedCheck)
		bytes += proto.Size(check.request)
		if len(batch) > 0 && bytes > batchBytesMax {
			break
		}
		b.queue.Remove(b.queue.Front())
		batch = append(batch, check)
	}
	if len(batch) == 0 {
		b.calls--
	}
	return batch
}

// send makes one call and replies to each check.
func (b *batcher) send(batch []*queuedCheck) {
	requests := make([]*pb.Request, len(batch))
	var deadline time.Time
	for i, check := range batch {
		requests[i] = check.request
		if check.deadline.After(deadline) {
			deadline = check.deadline
		}
	}
	// Not the context of a caller: the others would share its end.
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	b.metrics.Sent(len(batch))
	sent := time.Now()
	response, err := b.server.Check(ctx, &pb.CheckRequest{Requests: requests})
	answers, err := answersTo(len(batch), response.GetAnswers(), err)
	if status.Code(err) == codes.InvalidArgument && len(batch) > 1 {
		// The call as a whole was refused: the server allows less in one call, or one check is too large.
		half := len(batch) / 2
		b.send(batch[:half])
		b.send(batch[half:])
		return
	}
	for i, check := range batch {
		result := reply{err: err, sent: sent}
		if err == nil {
			result.answer = answers[i]
		}
		check.reply <- result
	}
}

// answersTo are the answers to so many requests.
func answersTo(requests int, answers []*pb.Answer, err error) ([]*pb.Answer, error) {
	if err == nil && len(answers) != requests {
		err = status.Errorf(codes.Internal, "%d answers to %d requests", len(answers), requests)
	}
	return answers, err
}
