package tollgate_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"example.com/tollgate"
	"example.com/tollgate/internal/servertest"
)

// group names a limit of 100.
func group(name string, hits uint64) tollgate.Request {
	named := request("group", name)
	named.Hits = hits
	return named
}

// reserve returns a reservation that the server has decided.
func reserve(
	t *testing.T, client *tollgate.Client, request tollgate.Request, terms tollgate.Terms,
) *tollgate.Reservation {
	t.Helper()
	reservation, err := client.Reserve(t.Context(), request, terms)
	if err != nil || reservation.Decision.NoAnswer != nil {
		t.Fatalf("%+v %v", reservation, err)
	}
	return reservation
}

// settle returns the settlement of a call that is answered.
func settle(t *testing.T, reservation *tollgate.Reservation, actual uint64) tollgate.Settlement {
	t.Helper()
	settlement, err := reservation.Settle(t.Context(), actual)
	if err != nil {
		t.Fatal(err)
	}
	return settlement
}

func remaining(t *testing.T, client *tollgate.Client, request tollgate.Request) uint64 {
	t.Helper()
	decision, err := client.Peek(t.Context(), request)
	if err != nil || decision.Tightest() == nil {
		t.Fatalf("%+v %v", decision, err)
	}
	return decision.Tightest().Remaining
}

func TestSettlement_OfLessThanReserved_GivesBackTheRest(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})

	reservation := reserve(t, client, group("red", 80), tollgate.Terms{})
	if held := remaining(t, client, group("red", 0)); !reservation.Decision.Allowed || held != 20 {
		t.Errorf("%+v, %d are left", reservation.Decision, held)
	}
	settlement := settle(t, reservation, 30)

	limit := settlement.Limits[0]
	if limit.Outcome != tollgate.SettledOpen || limit.Reserved != 80 || limit.NotCharged != 0 || limit.Remaining != 70 ||
		limit.ResetAfter <= 0 || len(settlement.Limits) != 1 || settlement.Unknown {
		t.Errorf("%+v", settlement)
	}
	if repeated := settle(t, reservation, 99); !reflect.DeepEqual(repeated, settlement) {
		t.Errorf("%+v is not the first answer", repeated)
	}
	if left := remaining(t, client, group("red", 0)); left != 70 {
		t.Errorf("%d are left", left)
	}
}

func TestSettlement_OfMoreThanReserved_ChargesAsFarAsTheLimit(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})

	limit := settle(t, reserve(t, client, group("red", 80), tollgate.Terms{}), 110).Limits[0]

	if limit.Remaining != 0 || limit.NotCharged != 10 {
		t.Errorf("%+v", limit)
	}
}

func TestCancellation_OfAReservation_GivesAllBack(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})

	settlement, err := reserve(t, client, group("red", 80), tollgate.Terms{}).Cancel(t.Context())

	if err != nil || settlement.Limits[0].Remaining != 100 || remaining(t, client, group("red", 0)) != 100 {
		t.Errorf("%+v %v", settlement, err)
	}
}

func TestHits_OfADescriptor_AreSettledAsTheyWereReserved(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	// One request of up to 50 tokens.
	hits := uint64(1)
	both := tollgate.Request{Domain: "edge", Hits: 50}
	both.Descriptors = []tollgate.Descriptor{tollgate.Describe("user", "ann"), tollgate.Describe("group", "red")}
	both.Descriptors[0].Hits = &hits
	left := func(settlement tollgate.Settlement) []uint64 {
		var left []uint64
		for _, limit := range settlement.Limits {
			left = append(left, limit.Remaining)
		}
		return left
	}

	reservation := reserve(t, client, both, tollgate.Terms{})
	// The reservation keeps what it was made with.
	hits, both.Descriptors[1] = 3, tollgate.Describe("group", "blue")
	settled := settle(t, reservation, 30)
	hits, both.Descriptors[1] = 1, tollgate.Describe("group", "red")
	canceled, err := reserve(t, client, both, tollgate.Terms{}).Cancel(t.Context())

	for _, settlement := range []tollgate.Settlement{settled, canceled} {
		if err != nil || !slices.Equal(left(settlement), []uint64{2, 70}) {
			t.Errorf("%+v %v", settlement, err)
		}
	}
}

func TestReservation_ThatIsRefused_HoldsNothing(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	reserve(t, client, group("red", 80), tollgate.Terms{})

	refused := reserve(t, client, group("red", 80), tollgate.Terms{})

	if refused.Decision.Allowed || refused.Decision.RetryAfter <= 0 {
		t.Errorf("%+v", refused.Decision)
	}
	if settlement := settle(t, refused, 10); len(settlement.Limits) != 0 || settlement.Unknown {
		t.Errorf("%+v", settlement)
	}
	if left := remaining(t, client, group("red", 0)); left != 20 {
		t.Errorf("%d are left", left)
	}
}

func TestReservation_ThatExpires_IsReleasedOrCharged(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	for _, each := range []struct {
		onExpiry tollgate.OnExpiry
		left     uint64
		outcome  tollgate.SettledOutcome
	}{{tollgate.Release, 100, tollgate.SettledReleased}, {tollgate.Charge, 20, tollgate.SettledCharged}} {
		name := each.onExpiry.String()
		terms := tollgate.Terms{TTL: time.Millisecond, OnExpiry: each.onExpiry}
		reservation := reserve(t, client, group(name, 80), terms)
		// That of hits that stay charged cannot be seen, so this waits for one that began later.
		reserve(t, client, group("later "+name, 1), tollgate.Terms{TTL: time.Millisecond})
		servertest.Eventually(t, "a later reservation has expired", func() bool {
			return remaining(t, client, group("later "+name, 0)) == 100
		})
		if left := remaining(t, client, group(name, 0)); left != each.left {
			t.Errorf("%s: %d are left", name, left)
		}
		// A settlement adjusts what its expiry did.
		if limit := settle(t, reservation, 30).Limits[0]; limit.Remaining != 70 || limit.Outcome != each.outcome {
			t.Errorf("%s: %+v", name, limit)
		}
	}
}

func TestSettlement_AfterTheCallerIsGone_IsCharged(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	reservation := reserve(t, client, group("red", 80), tollgate.Terms{})
	gone, cancel := context.WithCancel(t.Context())
	cancel()

	settlement, err := reservation.Settle(gone, 30)

	if err != nil || settlement.Limits[0].Remaining != 70 {
		t.Errorf("%+v %v", settlement, err)
	}
}

func TestSettlement_OfARefusedKey_EndsLocalRefusals(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{DenyCacheMax: time.Hour})
	three := request("user", "ann")
	three.Hits = 3
	reservation := reserve(t, client, three, tollgate.Terms{})
	if check(t, client, request("user", "ann")).Allowed || !check(t, client, request("user", "ann")).Local {
		t.Fatal("the second refusal must be local")
	}

	if _, err := reservation.Cancel(t.Context()); err != nil {
		t.Fatal(err)
	}

	if !check(t, client, request("user", "ann")).Allowed {
		t.Error("refused after the cancellation")
	}
}

func TestReservation_WithInvalidTermsOrRequest_IsAnError(t *testing.T) {
	client := newClient(t, servertest.Start(t, rules).Address, tollgate.Options{})
	for _, each := range []struct {
		request tollgate.Request
		ttl     time.Duration
	}{
		{group("red", 1), -time.Second},
		{group("red", 1), time.Microsecond},
		{group("red", 1), 24*time.Hour + time.Second},
		{tollgate.Request{Domain: "edge"}, time.Second},
		{request("group", "\xff"), time.Second},
		// As a check, this is as large as a message may be.
		{request("group", string(make([]byte, 4<<20-64))), time.Second},
	} {
		reservation, err := client.Reserve(t.Context(), each.request, tollgate.Terms{TTL: each.ttl})
		if refused := (*tollgate.InvalidRequestError)(nil); !errors.As(err, &refused) || reservation != nil {
			t.Errorf("%s: %+v %v", each.ttl, reservation, err)
		}
	}
}

func TestReservation_WithoutServer_GetsTheDefault(t *testing.T) {
	for fallback, allowed := range map[tollgate.Default]bool{tollgate.Allow: true, tollgate.Deny: false} {
		// Nothing listens on port 1.
		client := newClient(t, "127.0.0.1:1", tollgate.Options{OnNoAnswer: fallback})

		reservation, err := client.Reserve(t.Context(), group("red", 80), tollgate.Terms{})
		if err != nil || reservation.Decision.Allowed != allowed || reservation.Decision.NoAnswer == nil {
			t.Fatalf("%+v %v", reservation, err)
		}
		if settlement, err := reservation.Settle(t.Context(), 30); status.Code(err) != codes.Unavailable {
			t.Errorf("%+v %v", settlement, err)
		}
	}
}

func TestReservation_WhoseAnswerIsLost_IsSettled(t *testing.T) {
	// The server answers, and the client does not learn of it.
	lose := grpc.WithUnaryInterceptor(func(
		ctx context.Context, method string, request, reply any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker,
		options ...grpc.CallOption,
	) error {
		err := invoke(ctx, method, request, reply, connection, options...)
		if err == nil && method == "/tollgate.v1.RateLimiter/Reserve" {
			return status.Error(codes.Unavailable, "the answer is lost")
		}
		return err
	})
	options := tollgate.Options{DialOptions: []grpc.DialOption{lose}}
	client := newClient(t, servertest.Start(t, rules).Address, options)

	reservation, err := client.Reserve(t.Context(), group("red", 80), tollgate.Terms{})
	if err != nil || !reservation.Decision.Allowed || reservation.Decision.NoAnswer == nil {
		t.Fatalf("%+v %v", reservation, err)
	}

	if limit := settle(t, reservation, 30).Limits[0]; limit.Outcome != tollgate.SettledOpen || limit.Remaining != 70 {
		t.Errorf("%+v", limit)
	}
}
