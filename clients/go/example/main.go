// Command example is an HTTP server that asks Tollgate for each request: GET /hello, limited by the header "user".
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"example.com/tollgate"
	"example.com/tollgate/httplimit"
)

func main() {
	target := flag.String("tollgate", "127.0.0.1:8081", "address of Tollgate")
	listen := flag.String("listen", "127.0.0.1:8000", "address of this server")
	flag.Parse()

	client, err := tollgate.New(*target, tollgate.Options{OnNoAnswer: tollgate.Allow})
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("listening on http://%s", listener.Addr())
	server := http.Server{Handler: handler(client), ReadHeaderTimeout: 5 * time.Second}
	log.Fatal(server.Serve(listener))
}

func handler(client *tollgate.Client) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /hello", func(writer http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(writer, "hello")
	})
	limit := httplimit.Middleware(client, describe)
	return limit(mux)
}

// describe limits each user; requests without a user share one limit. A real service takes the user from a verified
// token: a client that chooses its name chooses its budget.
func describe(request *http.Request) *tollgate.Request {
	user := request.Header.Get("user")
	if user == "" {
		user = "anonymous"
	}
	return &tollgate.Request{Domain: "edge", Descriptors: []tollgate.Descriptor{tollgate.Describe("user", user)}}
}
