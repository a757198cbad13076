package tollgate

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// OnNoAnswer is the decision on a request if the server gives no answer.
type OnNoAnswer int

const (
	// Allow is for protection against overload: an outage of the limiter must not be an outage of the service.
	Allow OnNoAnswer = iota
	// Deny is for limits that protect money, logins or secrets.
	Deny
)

// Options of a client. The zero value of each field is its default.
type Options struct {
	// Timeout bounds the time of a call, in addition to the deadline of its context: 1 ms to 60 s. Default: 100 ms.
	Timeout time.Duration
	// OnNoAnswer decides if the server does not answer in time or at all. Default: Allow.
	OnNoAnswer OnNoAnswer
	// TLS of the connections. Default: plaintext.
	TLS *tls.Config
	// CallsMax is the number of calls under way from which on further checks are collected: 1 to 100. Default: 2.
	CallsMax int
	// BatchMax is the number of checks in one call: 1 to 256, at most api.max_requests of the server. Default: 256.
	BatchMax int
	// QueueMax is the number of checks that may wait for a call, at most a million; OnNoAnswer decides further ones.
	// Default: 10,000.
	QueueMax int
	// DenyCacheKeys is the number of keys in the local deny cache, at most a million; -1 turns it off. Default: 10,000.
	DenyCacheKeys int
	// DenyCacheMax is the time after which a refused key is asked for again, if its retry-after is longer: 1 ms to 24 h.
	// Default: 1 s.
	DenyCacheMax time.Duration
	// AdminToken is that of the server. It is sent with [Client.SetLimits], [Client.GetLimits], [Client.ClearLimits] and
	// [Client.ListLimits] only. Default: none.
	AdminToken string
	// Metrics receives what the client counts. Default: nothing is counted.
	Metrics Metrics
	// DialOptions are added to those of the connection, for example a stats handler of OpenTelemetry.
	DialOptions []grpc.DialOption
}

const (
	// Bounds the bytes of a batch: a message may have 4 MiB.
	batchBytesMax = 1 << 20
	// Answers are larger than their requests.
	answerBytesMax = 32 << 20
	ttlMax         = 24 * time.Hour
	million        = 1_000_000
	serviceConfig  = `{"loadBalancingConfig": [{"` + policyName + `": {}}]}`
)

// withDefaults fills in the defaults.
func (o Options) withDefaults() (Options, error) {
	if o.Metrics == nil {
		o.Metrics = noMetrics{}
	}
	return o, errors.Join(
		option("Timeout", &o.Timeout, 100*time.Millisecond, time.Millisecond, time.Minute),
		option("OnNoAnswer", &o.OnNoAnswer, Allow, Allow, Deny),
		option("CallsMax", &o.CallsMax, 2, 1, 100),
		option("BatchMax", &o.BatchMax, 256, 1, 256),
		option("QueueMax", &o.QueueMax, 10_000, 1, million),
		option("DenyCacheKeys", &o.DenyCacheKeys, 10_000, -1, million),
		option("DenyCacheMax", &o.DenyCacheMax, time.Second, time.Millisecond, 24*time.Hour),
		checkToken(o.AdminToken),
	)
}

// checkToken finds what metadata cannot have, such as the line break of a token that was read from a file.
func checkToken(token string) error {
	if strings.ContainsFunc(token, func(letter rune) bool { return letter <= ' ' || letter > '~' }) {
		return errors.New("AdminToken: not visible ASCII")
	}
	return nil
}

// option sets a field to its default if it is zero. An error names a field that is out of its range.
func option[T cmp.Ordered](name string, field *T, otherwise, least, most T) error {
	var zero T
	if *field == zero {
		*field = otherwise
	}
	if *field < least || *field > most {
		return fmt.Errorf("%s: not from %v to %v", name, least, most)
	}
	return nil
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
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithChainUnaryInterceptor(repeatElsewhere),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: retry, MinConnectTimeout: 5 * time.Second}),
		// Detects a server that disappeared without closing the connection.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: 10 * time.Second, Timeout: 2 * time.Second, PermitWithoutStream: true,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(answerBytesMax)),
	}
	return grpc.NewClient(target, append(options, o.DialOptions...)...)
}
