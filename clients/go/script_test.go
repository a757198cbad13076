package tollgate

import (
	"context"
	"errors"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "example.com/tollgate/gen/tollgate/v1"
	"example.com/tollgate/internal/servertest"
)

// script is a vector that runs a client against a scripted server, or one of the defaults and ranges of options.
type script struct {
	Name, Of, Option string
	Defaults         map[string]any
	Valid, Invalid   []float64
	Options          map[string]any
	Addresses        []string
	Steps            []scriptStep
}

type scriptStep struct {
	Call, Of      string
	Request       *VectorRequest
	Terms         map[string]any
	Actual        uint64
	Hits          map[int]uint64
	Queue         []*VectorRequest
	Waiting       *int
	Receive       []*VectorRequest
	ReceiveTerms  map[string]any `json:"receive_terms"`
	ReservationID string         `json:"reservation_id"`
	FirstFails    vectorError    `json:"first_fails"`
	Elsewhere     int
	Reply         int
	scriptedReply
	Result  any
	Results map[string]any
	Metrics *struct {
		Outcomes map[string]int
		Sent     []int
	}
	Cancel string
	Close  bool
}

// scriptRun runs one script.
type scriptRun struct {
	*testing.T
	client       *Client
	server       *ScriptedServer
	calls        map[string]*clientCall
	reservations map[string]*Reservation
	served       []*scriptedCall
	ids          map[string]string

	mutex    sync.Mutex
	outcomes map[string]int
	sent     []int
}

// clientCall is a call of the client, which is under way until it has a result.
type clientCall struct {
	cancel context.CancelFunc
	result chan map[string]any
}

func (r *scriptRun) Checked(outcome Outcome, _ time.Duration) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.outcomes[outcome.String()]++
}

func (r *scriptRun) Sent(batch int) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.sent = append(r.sent, batch)
}

func (r *scriptRun) Lost(uint64) {}

func TestScripts_OfVectors_HaveTheirResults(t *testing.T) {
	for _, name := range []string{"batches", "defaults", "ids", "reservations", "retries"} {
		for _, vector := range LoadVectors[script](t, name) {
			t.Run(vector.Name, func(t *testing.T) {
				switch vector.Of {
				case "client":
					runOptions(t, &vector, Options.withDefaults)
				case "slices":
					runOptions(t, &vector, SliceOptions.withDefaults)
				case "terms":
					runOptions(t, &vector, Terms.withDefaults)
				default:
					runScript(t, &vector)
				}
			})
		}
	}
}

func runScript(t *testing.T, vector *script) {
	run := &scriptRun{
		T: t, server: StartScripted(t), calls: map[string]*clientCall{}, reservations: map[string]*Reservation{},
		ids: map[string]string{}, outcomes: map[string]int{},
	}
	options := VectorOptions(vector.Options)
	options.Metrics, options.AdminToken = run, "secret"
	if vector.Addresses == nil {
		vector.Addresses = []string{"server"}
	}
	targets := run.server.targets(t, vector.Addresses)
	options.DialOptions = []grpc.DialOption{grpc.WithResolvers(targets)}
	client, err := New(targets.Scheme()+":///servers", options)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	run.client = client
	run.connect()
	for i := range vector.Steps {
		run.step(&vector.Steps[i])
	}
	if further := len(run.server.calls); further > 0 {
		t.Errorf("%d further calls", further)
	}
}

// connect waits until the client is connected to all servers, if there are several.
func (r *scriptRun) connect() {
	for seen := map[int]bool{}; r.server.servers > 1 && len(seen) < r.server.servers; {
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			// Without an answer, another peek follows.
			_, _ = r.client.Peek(r.Context(), Request{})
		}()
		select {
		case call := <-r.server.calls:
			seen[call.server] = true
			call.reply <- scriptedReply{Answers: []*VectorAnswer{{Verdict: "allowed"}}}
			<-answered
		case <-answered:
		}
	}
}

func (r *scriptRun) step(step *scriptStep) {
	name := step.Of
	if step.Request != nil {
		name = step.Request.User
	}
	if step.Call != "" {
		r.begin(name, step)
	}
	for _, request := range step.Queue {
		waiting := r.client.Queued() + 1
		r.begin(request.User, &scriptStep{Call: "check", Request: request})
		r.waitFor(waiting)
	}
	if step.Waiting != nil {
		r.waitFor(*step.Waiting)
	}
	if step.Receive != nil {
		r.receive(step)
	}
	if step.Reply > 0 {
		r.served[step.Reply-1].reply <- step.scriptedReply
	}
	if step.Cancel != "" {
		r.calls[step.Cancel].cancel()
	}
	if step.Close {
		r.client.Close()
	}
	if step.Result != nil {
		r.compare(name, step.Result)
	}
	for name, expected := range step.Results {
		r.compare(name, expected)
	}
	if wanted := step.Metrics; wanted != nil {
		r.mutex.Lock()
		defer r.mutex.Unlock()
		if !reflect.DeepEqual(wanted.Outcomes, r.outcomes) || !slices.Equal(wanted.Sent, r.sent) {
			r.Errorf("%v, batches of %v", r.outcomes, r.sent)
		}
	}
}

func (r *scriptRun) waitFor(checks int) {
	servertest.Eventually(r, "checks wait", func() bool { return r.client.Queued() == checks })
}

func (r *scriptRun) begin(name string, step *scriptStep) {
	ctx, cancel := context.WithCancel(r.Context())
	call := &clientCall{cancel, make(chan map[string]any, 1)}
	r.calls[name] = call
	go func() {
		defer cancel()
		call.result <- r.call(ctx, name, step)
	}()
}

// call makes a call and describes its result.
func (r *scriptRun) call(ctx context.Context, name string, step *scriptStep) map[string]any {
	var decision Decision
	var err error
	switch step.Call {
	case "check":
		decision, err = r.client.Check(ctx, step.Request.Request())
	case "peek":
		decision, err = r.client.Peek(ctx, step.Request.Request())
	case "refund":
		decision, err = r.client.Refund(ctx, step.Request.Request())
	case "reserve":
		var terms Terms
		for name, value := range step.Terms {
			setOption(&terms, name, value)
		}
		var reservation *Reservation
		if reservation, err = r.client.Reserve(ctx, step.Request.Request(), terms); err == nil {
			r.reservations[name] = reservation
			described := describeDecision(reservation.Decision)
			described["ended"] = reservation.Ended
			return described
		}
	case "settle":
		_, err = r.reservations[name].SettleEach(ctx, step.Actual, step.Hits)
	case "cancel":
		_, err = r.reservations[name].Cancel(ctx)
	}
	var invalid *InvalidRequestError
	var noAnswer *NoAnswerError
	switch {
	case errors.As(err, &invalid):
		return map[string]any{"error": []any{"invalid_request", invalid.Message}}
	case errors.As(err, &noAnswer):
		return map[string]any{"error": []any{"no_answer", code.Code(noAnswer.Code).String(), noAnswer.Message}}
	case errors.Is(err, context.Canceled):
		return map[string]any{"error": []any{"canceled"}}
	case step.Call == "settle" || step.Call == "cancel":
		return map[string]any{"settled": true}
	}
	return describeDecision(decision)
}

// compare waits for the result of a call.
func (r *scriptRun) compare(name string, expected any) {
	short := map[any]any{
		"allowed": map[string]any{"allowed": true, "source": "server"},
		"denied":  map[string]any{"allowed": false, "source": "server"},
		"settled": map[string]any{"settled": true},
	}
	if text, isShort := expected.(string); isShort {
		expected = short[text]
	}
	select {
	case result := <-r.calls[name].result:
		if text := differences(expected, result); text != "" {
			r.Fatalf("%s:%s", name, text)
		}
	case <-time.After(servertest.Patience):
		r.Fatalf("%s has no result", name)
	}
}

// receive takes the next call of the server, and replies if the step does.
func (r *scriptRun) receive(step *scriptStep) {
	call := r.next(step)
	r.compareCall(call, step)
	if step.FirstFails != nil {
		call.reply <- scriptedReply{Fails: step.FirstFails}
		r.served = append(r.served, call)
		step.Elsewhere = len(r.served)
		call = r.next(step)
		r.compareCall(call, step)
	}
	if step.Elsewhere > 0 && call.server == r.served[step.Elsewhere-1].server {
		r.Error("not at another address")
	}
	r.served = append(r.served, call)
	if step.Answers != nil || step.Fails != nil || step.Call == "settle" || step.Call == "cancel" {
		call.reply <- step.scriptedReply
	}
}

func (r *scriptRun) next(step *scriptStep) *scriptedCall {
	select {
	case call := <-r.server.calls:
		if call.authorized {
			r.Error("the admin token is sent")
		}
		return call
	case <-time.After(servertest.Patience):
		r.Fatalf("no call: %+v", step)
		return nil
	}
}

// compareCall compares a call with that of the step.
func (r *scriptRun) compareCall(call *scriptedCall, step *scriptStep) {
	requests := make([]*pb.Request, len(step.Receive))
	for i, each := range step.Receive {
		request := each.Request()
		// Vectors have valid requests.
		requests[i], _ = request.countedMessage()
	}
	var wanted proto.Message
	switch received := call.message.(type) {
	case *pb.CheckRequest:
		wanted = &pb.CheckRequest{Requests: requests}
	case *pb.PeekRequest:
		wanted = &pb.PeekRequest{Requests: requests}
	case *pb.RefundRequest:
		wanted = &pb.RefundRequest{Requests: requests}
	case *pb.ReserveRequest:
		wanted = &pb.ReserveRequest{
			Domain: requests[0].Domain, Descriptors: requests[0].Descriptors, Amount: requests[0].Hits,
			ReservationId: r.id(step.ReservationID, received.GetReservationId()),
			Ttl:           received.Ttl, OnExpiry: received.OnExpiry,
		}
		terms := Terms{TTL: received.GetTtl().AsDuration(), OnExpiry: received.GetOnExpiry()}
		for name, value := range step.ReceiveTerms {
			if found := valueOf(&terms, name); found != value {
				r.Errorf("%s: %v", name, found)
			}
		}
	case *pb.SettleRequest:
		wanted = &pb.SettleRequest{
			Domain: requests[0].Domain, Descriptors: requests[0].Descriptors, Actual: step.Actual,
			ReservationId: r.id(step.ReservationID, received.GetReservationId()),
		}
	case *pb.CancelRequest:
		wanted = &pb.CancelRequest{
			Domain: requests[0].Domain, Descriptors: requests[0].Descriptors,
			ReservationId: r.id(step.ReservationID, received.GetReservationId()),
		}
	}
	if !proto.Equal(wanted, call.message) {
		r.Fatalf("%.500s instead of %.500s", call.message, wanted)
	}
}

// id returns the id that is expected of a reservation. A variable is bound to the first id that is received.
func (r *scriptRun) id(expected, received string) string {
	if !strings.HasPrefix(expected, "$") {
		return expected
	}
	if bound, isBound := r.ids[expected]; isBound {
		return bound
	}
	for _, other := range r.ids {
		if other == received {
			r.Errorf("%s is the id of another reservation", received)
		}
	}
	if !regexp.MustCompile("^[0-9a-f]{32}$").MatchString(received) {
		r.Errorf("%s is not 32 hexadecimal digits", received)
	}
	r.ids[expected] = received
	return received
}

// runOptions compares the defaults of options, or the range of one of them. Zero is the default in Go.
func runOptions[O any](t *testing.T, vector *script, withDefaults func(O) (O, error)) {
	var zero O
	defaults, err := withDefaults(zero)
	for name, wanted := range vector.Defaults {
		if found := valueOf(&defaults, name); err != nil || found != wanted {
			t.Errorf("%s: %v %v", name, found, err)
		}
	}
	compare := func(values []float64, isValid bool) {
		for _, value := range values {
			var options O
			setOption(&options, vector.Option, value)
			if _, err := withDefaults(options); value != 0 && (err == nil) != isValid {
				t.Errorf("%v: %v", value, err)
			}
		}
	}
	compare(vector.Valid, true)
	compare(vector.Invalid, false)
}

// VectorOptions are those of a client; the timeout is long unless it is given.
func VectorOptions(options map[string]any) Options {
	result := Options{Timeout: servertest.Patience}
	for name, value := range options {
		setOption(&result, name, value)
	}
	return result
}

// Names of enumerations, in the order of their values.
var enumerations = map[string][]string{"on_no_answer": {"allow", "deny"}, "on_expiry": {"release", "charge"}}

// optionField is the field of options with this name in a vector.
func optionField(options any, name string) reflect.Value {
	name = strings.ReplaceAll(strings.TrimSuffix(name, "_ms"), "_", "")
	isField := func(field string) bool { return strings.EqualFold(field, name) }
	return reflect.ValueOf(options).Elem().FieldByNameFunc(isField)
}

func setOption(options any, name string, value any) {
	field := optionField(options, name)
	if text, isText := value.(string); isText {
		field.SetInt(int64(slices.Index(enumerations[name], text)))
		return
	}
	number := value.(float64)
	if field.Type() == reflect.TypeFor[time.Duration]() {
		number *= float64(time.Millisecond)
	}
	if name == "deny_cache_keys" && number == 0 {
		number = -1
	}
	field.Set(reflect.ValueOf(number).Convert(field.Type()))
}

func valueOf(options any, name string) any {
	field := optionField(options, name)
	if names := enumerations[name]; names != nil {
		return names[field.Int()]
	}
	number := field.Convert(reflect.TypeFor[float64]()).Float()
	if field.Type() == reflect.TypeFor[time.Duration]() {
		number /= float64(time.Millisecond)
	}
	return number
}
