// Command llm is an HTTP server that keeps four limits of each user of a language model: GET /chat, which streams the
// answer. A reservation holds one request, the most tokens that the answer may have, and a place in flight. Its
// settlement frees the place, and charges the tokens that were sent.
package main

import (
	"context"
	"flag"
	"io"
	"iter"
	"log"
	"net"
	"net/http"
	"strconv"
	"time"

	"example.com/tollgate"
	"example.com/tollgate/httplimit"
)

// The index of the descriptor of calls in flight.
const inFlight = 3

// Longer than any answer takes. If this process ends before, the place is free again, and the rest stays charged.
var terms = tollgate.Terms{TTL: 5 * time.Minute, OnExpiry: tollgate.Charge}

func main() {
	target := flag.String("tollgate", "127.0.0.1:8081", "address of Tollgate")
	listen := flag.String("listen", "127.0.0.1:8000", "address of this server")
	flag.Parse()

	// Tokens cost money.
	client, err := tollgate.New(*target, tollgate.Options{OnNoAnswer: tollgate.Deny})
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("listening on http://%s", listener.Addr())
	// An answer ends before its reservation expires.
	handler := (&service{client, 50 * time.Millisecond}).handler()
	server := http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 4 * time.Minute}
	log.Fatal(server.Serve(listener))
}

type service struct {
	client *tollgate.Client
	// The time between two tokens.
	pace time.Duration
}

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /chat", s.chat)
	return mux
}

func (s *service) chat(writer http.ResponseWriter, request *http.Request) {
	maxTokens, err := strconv.ParseUint(request.FormValue("max_tokens"), 10, 32)
	if err != nil || maxTokens == 0 {
		writer.WriteHeader(http.StatusBadRequest)
		return
	}
	// Not canceled with the request: a reservation without its answer would stay charged as a whole.
	ctx := context.WithoutCancel(request.Context())
	reservation, err := s.client.Reserve(ctx, describe(request.Header.Get("user"), maxTokens), terms)
	if err != nil {
		writer.WriteHeader(http.StatusInternalServerError)
		return
	}
	if !reservation.Decision.Allowed {
		// Holds hits only if the answer was lost, and the default has decided.
		if _, err := reservation.Cancel(ctx); err != nil {
			log.Printf("the reservation may be held until it expires: %v", err)
		}
		httplimit.Refuse(writer, request, &reservation.Decision)
		return
	}
	sent := uint64(0)
	defer func() {
		// One request as reserved, the tokens that were sent, and no place.
		if _, err := reservation.SettleEach(ctx, sent, map[int]uint64{inFlight: 0}); err != nil {
			log.Printf("the reservation is held until it expires: %v", err)
		}
	}()
	stream := http.NewResponseController(writer)
	for token := range model(request.Context(), s.pace, maxTokens) {
		if _, err := io.WriteString(writer, token); err != nil {
			return
		}
		// Fails if the caller has gone away.
		if err := stream.Flush(); err != nil {
			return
		}
		sent++
	}
}

func describe(user string, maxTokens uint64) tollgate.Request {
	one := uint64(1)
	requests, place := tollgate.Describe("requests", user), tollgate.Describe("in_flight", user)
	requests.Hits, place.Hits, place.OnExpiry = &one, &one, tollgate.Release.Enum()
	tokens, month := tollgate.Describe("tokens", user), tollgate.Describe("tokens_of_month", user)
	return tollgate.Request{
		Domain: "models", Descriptors: []tollgate.Descriptor{requests, tokens, month, place}, Hits: maxTokens,
	}
}

// model stands for a language model: it yields the tokens of an answer as they come, until the context ends.
func model(ctx context.Context, pace time.Duration, maxTokens uint64) iter.Seq[string] {
	sentence := []string{"Limits", " are", " kept", " exactly", ".", "\n"}
	return func(yield func(string) bool) {
		for i := range min(18, maxTokens) {
			if i > 0 {
				select {
				case <-time.After(pace):
				case <-ctx.Done():
					return
				}
			}
			if !yield(sentence[i%6]) {
				return
			}
		}
	}
}
