// Command control-plane serves rate limit rules over xDS, by go-control-plane, for the tests.
//
// Each line of its input has a version and the path of a file; the file has a JSON array of RateLimitConfig messages,
// which become the snapshot of the node. A limit with the name of `newer` gets a field that its message does not have yet.
// Each line of its output is a JSON object: the address, or a request.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"github.com/envoyproxy/go-control-plane/pkg/server/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	messageBytesMax = 256 << 20
	// newer is the name of limits with a field of a later version.
	newer = "newer"
	// newField is the number of that field.
	newField = 100
)

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address")
	node := flag.String("node", "envoy-ratelimit", "node id that gets the rules")
	cert := flag.String("cert", "", "certificate chain; none for plaintext")
	key := flag.String("key", "", "private key")
	clientCA := flag.String("client-ca", "", "authority of client certificates, which are required")
	flag.Parse()

	options := []grpc.ServerOption{grpc.MaxSendMsgSize(messageBytesMax)}
	if *cert != "" {
		config, err := tlsConfig(*cert, *key, *clientCA)
		check(err)
		options = append(options, grpc.Creds(credentials.NewTLS(config)))
	}
	listener, err := net.Listen("tcp", *listen)
	check(err)

	out := make(chan any, 1024)
	go func() {
		encoder := json.NewEncoder(os.Stdout)
		for event := range out {
			check(encoder.Encode(event))
		}
	}()
	snapshots := cache.NewSnapshotCache(false, cache.IDHash{}, nil)
	callbacks := server.CallbackFuncs{
		StreamRequestFunc: func(stream int64, request *discovery.DiscoveryRequest) error {
			out <- map[string]any{
				"event":    "request",
				"stream":   stream,
				"node":     request.GetNode().GetId(),
				"metadata": request.GetNode().GetMetadata().AsMap(),
				"type":     request.GetTypeUrl(),
				"version":  request.GetVersionInfo(),
				"nonce":    request.GetResponseNonce(),
				"error":    request.GetErrorDetail().GetMessage(),
			}
			return nil
		},
	}
	grpcServer := grpc.NewServer(options...)
	discovery.RegisterAggregatedDiscoveryServiceServer(
		grpcServer, server.NewServer(context.Background(), snapshots, callbacks))
	out <- map[string]any{"event": "listening", "address": listener.Addr().String()}

	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			version, path, _ := strings.Cut(lines.Text(), " ")
			check(set(snapshots, *node, version, path))
			out <- map[string]any{"event": "set", "version": version}
		}
	}()
	check(grpcServer.Serve(listener))
}

// set replaces the snapshot of the node.
func set(snapshots cache.SnapshotCache, node, version, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var configs []json.RawMessage
	if err := json.Unmarshal(text, &configs); err != nil {
		return err
	}
	resources := make([]types.Resource, 0, len(configs))
	for _, config := range configs {
		message := &ratelimit.RateLimitConfig{}
		if err := protojson.Unmarshal(config, message); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		addNewFields(message.GetDescriptors())
		resources = append(resources, message)
	}
	snapshot, err := cache.NewSnapshot(version, map[resource.Type][]types.Resource{
		resource.RateLimitConfigType: resources,
	})
	if err != nil {
		return err
	}
	return snapshots.SetSnapshot(context.Background(), node, snapshot)
}

// addNewFields gives limits with the name of `newer` a field that is unknown to their message.
func addNewFields(descriptors []*ratelimit.RateLimitDescriptor) {
	for _, descriptor := range descriptors {
		if policy := descriptor.GetRateLimit(); policy.GetName() == newer {
			field := protowire.AppendTag(nil, newField, protowire.VarintType)
			policy.ProtoReflect().SetUnknown(protowire.AppendVarint(field, 10))
		}
		addNewFields(descriptor.GetDescriptors())
	}
}

func tlsConfig(cert, key, clientCA string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}
	if clientCA == "" {
		return config, nil
	}
	pem, err := os.ReadFile(clientCA)
	if err != nil {
		return nil, err
	}
	config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
	if !config.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, errors.New("no authority of client certificates")
	}
	return config, nil
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
