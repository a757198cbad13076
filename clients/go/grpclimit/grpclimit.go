// Package grpclimit limits calls of a gRPC server by the decisions of a Tollgate server.
package grpclimit

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/tollgate"
	"example.com/tollgate/internal/headers"
)

// Describe says what a call asks for; nil if the call is not limited. The method is its full name, such as
// "/shop.Orders/Create". The message is that of a unary call, and nil for a stream.
type Describe func(ctx context.Context, method string, message any) *tollgate.Request

// UnaryServerInterceptor limits unary calls.
//
// A denied call ends with RESOURCE_EXHAUSTED and google.rpc.RetryInfo, if the same call passes later. If the decision is
// the default one, it ends with UNAVAILABLE and google.rpc.RetryInfo of a second. The metadata of each response to a
// call with a limit has ratelimit-limit, ratelimit-remaining and ratelimit-reset of the tightest one, in whole seconds.
// If describe returns an invalid request, the code is INTERNAL.
func UnaryServerInterceptor(checker tollgate.Checker, describe Describe) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, message any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		limited := describe(ctx, info.FullMethod, message)
		if err := pass(ctx, checker, limited, func(md metadata.MD) error { return grpc.SetHeader(ctx, md) }); err != nil {
			return nil, err
		}
		return next(ctx, message)
	}
}

// StreamServerInterceptor limits streams, each when it begins, as [UnaryServerInterceptor] does.
func StreamServerInterceptor(checker tollgate.Checker, describe Describe) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		limited := describe(stream.Context(), info.FullMethod, nil)
		if err := pass(stream.Context(), checker, limited, stream.SetHeader); err != nil {
			return err
		}
		return next(server, stream)
	}
}

// pass returns nil if the call goes on, otherwise the status with which it ends.
func pass(
	ctx context.Context, checker tollgate.Checker, limited *tollgate.Request, setHeader func(metadata.MD) error,
) error {
	if limited == nil {
		return nil
	}
	decision, err := checker.Check(ctx, *limited)
	if invalid := (*tollgate.InvalidRequestError)(nil); errors.As(err, &invalid) {
		// To let it pass would open a way around the limit for text that is not UTF-8.
		return status.Error(codes.Internal, "the rate limit of this call is not set up correctly")
	}
	if err != nil {
		return status.FromContextError(err).Err()
	}
	md := metadata.MD{}
	for _, header := range headers.Limits(&decision) {
		md.Set(header.Name, header.Value)
	}
	if err := setHeader(md); err != nil {
		return err
	}
	if !decision.Allowed {
		return denial(decision)
	}
	if err := decision.Wait(ctx); err != nil {
		return status.FromContextError(err).Err()
	}
	return nil
}

func denial(decision tollgate.Decision) error {
	code, wait := codes.ResourceExhausted, decision.RetryAfter
	if decision.Source == tollgate.SourceDefault {
		code, wait = codes.Unavailable, headers.NoAnswerWait
	}
	denied := status.New(code, headers.Reason(&decision))
	if wait <= 0 {
		return denied.Err()
	}
	detailed, err := denied.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
	if err != nil {
		return denied.Err()
	}
	return detailed.Err()
}
