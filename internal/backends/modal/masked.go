package modal

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/turngate/turngate/internal/masks"
)

// Modal's client puts the keys of an account into the metadata of each call, from the
// environment or from its own file. These interceptors come after that.

func maskUnary(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return masked(ctx, invoke(ctx, method, req, reply, conn, opts...))
}

func maskStream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, conn, method, opts...)
	if err != nil {
		return nil, masked(ctx, err)
	}
	return maskedStream{s, ctx}, nil
}

type maskedStream struct {
	grpc.ClientStream
	call context.Context //nolint:containedctx // has the metadata of the call
}

func (s maskedStream) RecvMsg(m any) error { return masked(s.call, s.ClientStream.RecvMsg(m)) }

// masked hides the keys of a call in its error, which may quote them.
func masked(ctx context.Context, err error) error {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	keys := &masks.Keys{}
	for _, name := range []string{
		"x-modal-token-id", "x-modal-token-secret", "x-modal-auth-token",
		"x-modal-refresh-token", "x-modal-oauth-client-secret", "x-modal-oauth-client-assertion",
	} {
		for _, value := range md.Get(name) {
			keys.Add(value)
		}
	}
	text := keys.Text(st.Message())
	if text == st.Message() {
		return err
	}
	p := st.Proto()
	p.Message = text
	return status.FromProto(p).Err()
}
