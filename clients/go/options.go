package tollgate

import (
	"crypto/tls"
	"errors"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// Default is the decision on a request if the server gives no answer.
type Default int

const (
	// Allow is for protection against overload: an outage of the limiter must not be an outage of the service.
	Allow Default = iota
	// Deny is for limits that protect money, logins or secrets.
	Deny
)

// Options of a client. The zero value of each field is its default.
type Options struct {
	// Timeout bounds the time of a call, in addition to the deadline of its context. Default: 100 ms.
	Timeout time.Duration
	// OnNoAnswer decides if the server does not answer in time or at all. Default: Allow.
	OnNoAnswer Default
	// TLS of the connections. Default: plaintext.
	TLS *tls.Config
	// MaxCalls is the number of calls under way from which on further checks are collected. Default: 2.
	MaxCalls int
	// MaxBatch is the number of checks in one call, at most api.max_requests of the server. Default: 256.
	MaxBatch int
	// MaxQueue is the number of checks that may wait for a call; OnNoAnswer decides further ones. Default: 10,000.
	MaxQueue int
	// DenyCacheSize is the number of keys in the local deny cache; -1 turns it off. Default: 10,000.
	DenyCacheSize int
	// DenyCacheMax is the time after which a refused key is asked for again, if its retry-after is longer. Default: 1 s.
	DenyCacheMax time.Duration
	// Metrics receives what the client counts. Default: nothing is counted.
	Metrics Metrics
	// DialOptions are added to those of the connection, for example a stats handler of OpenTelemetry.
	DialOptions []grpc.DialOption
}

const (
	// Bounds the bytes of a batch: a message may have 4 MiB.
	maxBatchBytes = 1 << 20
	// Answers are larger than their requests.
	maxAnswerBytes = 32 << 20
	roundRobin     = `{"loadBalancingConfig": [{"round_robin": {}}]}`
)

// withDefaults fills in the defaults.
func (o Options) withDefaults() (Options, error) {
	if o.Timeout < 0 || o.DenyCacheMax < 0 || o.MaxCalls < 0 || o.MaxBatch < 0 || o.MaxQueue < 0 {
		return o, errors.New("tollgate: an option is negative; only DenyCacheSize may be")
	}
	setDefault(&o.Timeout, 100*time.Millisecond)
	setDefault(&o.MaxCalls, 2)
	setDefault(&o.MaxBatch, 256)
	setDefault(&o.MaxQueue, 10_000)
	setDefault(&o.DenyCacheSize, 10_000)
	setDefault(&o.DenyCacheMax, time.Second)
	if o.Metrics == nil {
		o.Metrics = noMetrics{}
	}
	return o, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// dial does not wait for a connection, so a service can start while the server is down.
func (o *Options) dial(target string) (*grpc.ClientConn, error) {
	security := insecure.NewCredentials()
	if o.TLS != nil {
		security = credentials.NewTLS(o.TLS)
	}
	// By default gRPC waits up to two minutes before it reconnects.
	retry := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(security),
		grpc.WithDefaultServiceConfig(roundRobin),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: 5 * time.Second}),
		// Detects a server that disappeared without closing the connection.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 10 * time.Second, Timeout: 2 * time.Second, PermitWithoutStream: true,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)),
	}
	return grpc.NewClient(target, append(options, o.DialOptions...)...)
}
