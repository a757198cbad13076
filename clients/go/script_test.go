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
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"example.com/tollgate/internal/servertest"
)

// script is a vector that runs a client against a scripted server, or the defaults of options.
type script struct {
	Name, Of, Option string
	Defaults         map[string]any
	Valid, Invalid   []float64
	Options          map[string]any
	Steps            []scriptStep
}

type scriptStep struct {
	Call, As, Of  string
	Request       *VectorRequest
	Terms         map[string]any
	Actual        uint64
	Receive       string
	Requests      []VectorRequest
	ReservationID string `json:"reservation_id"`
	Answers       *[]VectorAnswer
	Error         map[string]any
	HeldAs        *string `json:"held_as"`
	Reply         int
	Waiting       *int
	Result        string
	Decision      any
	Settlement    any
	Metrics       *struct {
		Outcomes map[string]int
		Sent     []int
	}
	Cancel string
	Close  bool
}

// scriptCounts are what the client of a script has counted.
type scriptCounts struct {
	noMetrics
	mutex    sync.Mutex
	outcomes map[string]int
	sent     []int
}

func (c *scriptCounts) Checked(outcome Outcome, _ time.Duration) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.outcomes[outcome.String()]++
}

func (c *scriptCounts) Sent(batch int) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.sent = append(c.sent, batch)
}

// clientCall is a call of the client, which is under way until it has a result.
type clientCall struct {
	cancel      context.CancelFunc
	result      chan map[string]any
	reservation *Reservation
}

// run runs one script.
type run struct {
	*testing.T
	client *Client
	server *ScriptedServer
	counts *scriptCounts
	calls  map[string]*clientCall
	served []*scriptedCall
	ids    map[string]string
}

func runScript(t *testing.T, vector *script) {
	server, counts := StartScripted(t), &scriptCounts{outcomes: map[string]int{}}
	options := VectorOptions(vector.Options)
	options.Metrics = counts
	client, err := New(server.Address, options)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	run := &run{t, client, server, counts, map[string]*clientCall{}, nil, map[string]string{}}
	for i := range vector.Steps {
		run.step(&vector.Steps[i])
	}
	select {
	case call := <-server.calls:
		t.Errorf("one more call: %s", call.method)
	default:
	}
}

// VectorOptions are those of a client; the timeout is long unless it is given.
func VectorOptions(options map[string]any) Options {
	result := Options{Timeout: servertest.Patience}
	for name, value := range options {
		setOption(&result, name, value)
	}
	return result
}

// optionField is the field of options with this name in a vector.
func optionField(options any, name string) reflect.Value {
	name = strings.ReplaceAll(strings.TrimSuffix(name, "_ms"), "_", "")
	isField := func(field string) bool { return strings.EqualFold(field, name) }
	return reflect.ValueOf(options).Elem().FieldByNameFunc(isField)
}

// Names of enumerations, in the order of their values.
var enumerations = map[string][]string{"on_no_answer": {"allow", "deny"}, "on_expiry": {"release", "charge"}}

func setOption(options any, name string, value any) {
	field, number := optionField(options, name), value
	if text, isText := value.(string); isText {
		number = float64(slices.Index(enumerations[name], text))
	}
	whole := int64(number.(float64))
	switch {
	case field.Type() == reflect.TypeFor[time.Duration]():
		field.SetInt(whole * int64(time.Millisecond))
	case name == "deny_cache_keys" && whole == 0:
		field.SetInt(-1)
	case field.CanUint():
		field.SetUint(uint64(whole))
	default:
		field.SetInt(whole)
	}
}

func valueOf(options any, name string) any {
	field := optionField(options, name)
	switch {
	case enumerations[name] != nil:
		return enumerations[name][field.Int()]
	case field.Type() == reflect.TypeFor[time.Duration]():
		return float64(time.Duration(field.Int()).Milliseconds())
	case field.CanUint():
		return float64(field.Uint())
	default:
		return float64(field.Int())
	}
}

func (r *run) step(step *scriptStep) {
	switch {
	case step.Call != "":
		r.begin(step)
	case step.Receive != "":
		r.receive(step)
	case step.Reply > 0:
		r.reply(r.served[step.Reply-1], step)
	case step.Waiting != nil:
		servertest.Eventually(r, "checks wait", func() bool { return r.client.Queued() == *step.Waiting })
	case step.Cancel != "":
		r.calls[step.Cancel].cancel()
	case step.Close:
		if err := r.client.Close(); err != nil {
			r.Error(err)
		}
	case step.Metrics != nil:
		r.counts.mutex.Lock()
		defer r.counts.mutex.Unlock()
		wanted := map[string]any{}
		for name, count := range step.Metrics.Outcomes {
			wanted[name] = count
		}
		found := map[string]any{}
		for name, count := range r.counts.outcomes {
			found[name] = count
		}
		if len(wanted) != len(found) || differences(wanted, found) != "" || !slices.Equal(step.Metrics.Sent, r.counts.sent) {
			r.Errorf("%v, batches of %v", found, r.counts.sent)
		}
	case step.Result != "":
		expected := map[string]any{}
		if step.Decision != nil {
			expected["decision"] = step.Decision
		}
		if step.Settlement != nil {
			expected["settlement"] = step.Settlement
		}
		if step.Error != nil {
			expected["error"] = step.Error
		}
		select {
		case result := <-r.calls[step.Result].result:
			if text := differences(expected, result); text != "" {
				r.Fatalf("%s:%s", step.Result, text)
			}
		case <-time.After(servertest.Patience):
			r.Fatalf("%s has no result", step.Result)
		}
	}
}

func (r *run) begin(step *scriptStep) {
	ctx, cancel := context.WithCancel(r.Context())
	call := &clientCall{cancel: cancel, result: make(chan map[string]any, 1)}
	r.calls[step.As] = call
	var request Request
	if step.Request != nil {
		request = step.Request.Request()
	}
	go func() {
		defer cancel()
		var decision Decision
		var settlement *Settlement
		var err error
		switch step.Call {
		case "check":
			decision, err = r.client.Check(ctx, request)
		case "peek":
			decision, err = r.client.Peek(ctx, request)
		case "refund":
			decision, err = r.client.Refund(ctx, request)
		case "reserve":
			var terms Terms
			for name, value := range step.Terms {
				setOption(&terms, name, value)
			}
			if call.reservation, err = r.client.Reserve(ctx, request, terms); err == nil {
				decision = call.reservation.Decision
			}
		case "settle", "cancel":
			settlement = &Settlement{}
			if step.Call == "settle" {
				*settlement, err = r.calls[step.Of].reservation.Settle(ctx, step.Actual)
			} else {
				*settlement, err = r.calls[step.Of].reservation.Cancel(ctx)
			}
		}
		call.result <- describeResult(decision, settlement, err)
	}()
}

func describeResult(decision Decision, settlement *Settlement, err error) map[string]any {
	var invalid *InvalidRequestError
	var noAnswer *NoAnswerError
	switch {
	case errors.As(err, &invalid):
		return map[string]any{"error": map[string]any{"kind": "invalid_request", "message": invalid.Message}}
	case errors.As(err, &noAnswer):
		name := code.Code(noAnswer.Code).String()
		return map[string]any{"error": map[string]any{"kind": "no_answer", "code": name, "message": noAnswer.Message}}
	case errors.Is(err, context.Canceled):
		return map[string]any{"error": map[string]any{"kind": "canceled"}}
	case settlement != nil:
		return map[string]any{"settlement": map[string]any{"unknown": settlement.Unknown}}
	}
	return map[string]any{"decision": describeDecision(decision)}
}

func (r *run) receive(step *scriptStep) {
	var call *scriptedCall
	select {
	case call = <-r.server.calls:
	case <-time.After(servertest.Patience):
		r.Fatalf("no call of %s", step.Receive)
	}
	r.served = append(r.served, call)
	isSame := call.method == step.Receive && len(call.requests) == len(step.Requests)
	for i := range min(len(step.Requests), len(call.requests)) {
		request := step.Requests[i].Request()
		wanted, _ := request.message()
		wanted.RequestId = request.RequestID
		if call.reserve == nil && call.id != "" {
			wanted.Hits = 0
		}
		isSame = isSame && proto.Equal(wanted, call.requests[i])
	}
	if !isSame || call.actual != step.Actual || !r.hasID(step.ReservationID, call.id) {
		r.Fatalf("%s of %d requests, not as expected: %+v", call.method, len(call.requests), step)
	}
	for name, wanted := range step.Terms {
		terms := Terms{TTL: call.reserve.GetTtl().AsDuration(), OnExpiry: call.reserve.GetOnExpiry()}
		if found := valueOf(&terms, name); found != wanted {
			r.Errorf("%s: %v", name, found)
		}
	}
	if step.Answers != nil || step.Error != nil || step.Receive == "Settle" || step.Receive == "Cancel" {
		r.reply(call, step)
	}
}

// hasID compares the id of a reservation, or binds a variable to it.
func (r *run) hasID(expected, id string) bool {
	if len(expected) == 0 || expected[0] != '$' {
		return id == expected
	}
	if bound, known := r.ids[expected]; known {
		return id == bound
	}
	for _, other := range r.ids {
		if other == id {
			return false
		}
	}
	r.ids[expected] = id
	return regexp.MustCompile("^[0-9a-f]{32}$").MatchString(id)
}

func (r *run) reply(call *scriptedCall, step *scriptStep) {
	reply := scriptedReply{heldAs: call.id}
	if step.HeldAs != nil {
		reply.heldAs = *step.HeldAs
	}
	if step.Error != nil {
		number := code.Code_value[step.Error["code"].(string)]
		reply.err = status.Error(codes.Code(number), step.Error["message"].(string))
	}
	if step.Answers != nil {
		for i := range *step.Answers {
			reply.answers = append(reply.answers, (*step.Answers)[i].message())
		}
	}
	call.reply <- reply
}

func TestScripts_OfVectors_HaveTheirResults(t *testing.T) {
	for _, name := range []string{"batches", "defaults", "ids", "retries"} {
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

// runOptions compares the defaults of options, or the range of one of them. Zero is the default in Go.
func runOptions[O any](t *testing.T, vector *script, withDefaults func(O) (O, error)) {
	var zero O
	defaults, err := withDefaults(zero)
	for name, wanted := range vector.Defaults {
		if found := valueOf(&defaults, name); err != nil || found != wanted {
			t.Errorf("%s: %v %v", name, found, err)
		}
	}
	taken := func(value float64) bool {
		var options O
		setOption(&options, vector.Option, value)
		_, err := withDefaults(options)
		return err == nil
	}
	for _, value := range vector.Valid {
		if !taken(value) {
			t.Errorf("%v is not taken", value)
		}
	}
	for _, value := range vector.Invalid {
		if value != 0 && taken(value) {
			t.Errorf("%v is taken", value)
		}
	}
}
