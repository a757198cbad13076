// Command llm is an HTTP server that limits the requests and the tokens of each user of a language model: GET /chat,
// which streams the answer. The most tokens that the answer may have are reserved, and settled at the tokens that were
// sent.
package main

import (
	"context"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"time"

	"example.com/tollgate"
	"example.com/tollgate/httplimit"
)

// Longer than any answer takes. If this process ends, the tokens that it held stay charged.
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
	handler := (&service{client, model{pace: 50 * time.Millisecond}}).handler()
	// An answer ends before its reservation expires.
	server := http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 4 * time.Minute}
	log.Fatal(server.Serve(listener))
}

type service struct {
	client *tollgate.Client
	model  model
}

func (s *service) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /chat", s.chat)
	return mux
}

func (s *service) chat(writer http.ResponseWriter, request *http.Request) {
	user := request.Header.Get("user")
	sentences, maxTokens := number(request, "sentences", 3), number(request, "max_tokens", 500)
	if user == "" || sentences < 1 || sentences > 1_000_000 || maxTokens < 1 {
		fail(writer, http.StatusBadRequest)
		return
	}
	// Not canceled with the request: a reservation without its answer would stay charged as a whole.
	reservation, err := s.client.Reserve(context.WithoutCancel(request.Context()), describe(user, maxTokens), terms)
	if err != nil {
		fail(writer, http.StatusInternalServerError)
		return
	}
	if !reservation.Decision.Allowed {
		refuse(writer, request, reservation)
		return
	}
	sent := 0
	defer func() {
		// One request, and the tokens that were sent.
		if _, err := reservation.Settle(request.Context(), uint64(sent)); err != nil {
			log.Printf("the reservation stays charged as a whole: %v", err)
		}
	}()
	writer.Header().Set("Content-Type", "text/plain; charset=utf-8")
	stream := http.NewResponseController(writer)
	for token := range s.model.answer(request.Context(), sentences, maxTokens) {
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

func refuse(writer http.ResponseWriter, request *http.Request, reservation *tollgate.Reservation) {
	// Holds hits only if the answer was lost, and the default has decided.
	if _, err := reservation.Cancel(request.Context()); err != nil {
		log.Printf("the reservation may stay charged: %v", err)
	}
	httplimit.Refuse(writer, &reservation.Decision)
}

// describe asks for one request of the user, and for as many tokens as its answer may have.
func describe(user string, maxTokens int) tollgate.Request {
	one := uint64(1)
	requests, tokens := tollgate.Describe("requests", user), tollgate.Describe("tokens", user)
	requests.Hits = &one
	return tollgate.Request{
		Domain: "models", Descriptors: []tollgate.Descriptor{requests, tokens}, Hits: uint64(maxTokens),
	}
}

// number is a parameter of the request; 0 if it is not valid.
func number(request *http.Request, name string, otherwise int) int {
	text := request.URL.Query().Get(name)
	if text == "" {
		return otherwise
	}
	value, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return value
}

func fail(writer http.ResponseWriter, code int) {
	http.Error(writer, http.StatusText(code), code)
}
