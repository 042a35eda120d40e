package modal

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/backends/hosted"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// account is an account of Modal with the app and the image of its sandboxes.
type account struct {
	maker      *modal.Client // makes sandboxes; it does not wait when Modal asks for it
	client     *modal.Client // for everything else; it waits
	image, app string        // without an image there are no clients
}

// open returns an account. Modal's client takes the token and the address of the server from
// the environment or from its own file, see docs/sandboxes.md. Nothing is asked of Modal yet.
func open(image, app string) (*account, error) {
	if image == "" {
		return &account{}, nil
	}
	none := time.Duration(0) // hosted.Bounds waits when Modal asks for it
	maker, err := dial(&none)
	if err != nil {
		return nil, err
	}
	client, err := dial(nil)
	if err != nil {
		maker.Close()
		return nil, err
	}
	return &account{maker, client, image, app}, nil
}

// dial makes a client that waits so long when Modal asks for it. nil: no bound.
func dial(wait *time.Duration) (*modal.Client, error) {
	client, err := modal.NewClientWithOptions(&modal.ClientParams{
		Logger: slog.New(slog.DiscardHandler), MaxThrottleWait: wait,
		GRPCUnaryInterceptors: []grpc.UnaryClientInterceptor{maskUnary}, GRPCStreamInterceptors: []grpc.StreamClientInterceptor{maskStream},
	})
	if err != nil {
		return nil, fmt.Errorf("read the settings of Modal's client: %w", err)
	}
	return client, nil
}

var errNoImage = fmt.Errorf("%w: name an image for the virtual machines of Modal with --modal IMAGE", sandboxes.ErrNotAsked)

// Usable implements hosted.Provider. Modal tells whether the token is valid.
func (a *account) Usable() error {
	if a.image == "" {
		return errNoImage
	}
	return nil
}

// Names of the tags of Modal's sandboxes.
const (
	tagOwner   = "turngate_owner"
	tagRollout = "turngate_rollout"
	tagRun     = "turngate_run"
	tagCreate  = "turngate_create" // of one call of Make
)

// maxTag is the most characters that Modal takes as the value of a tag.
const maxTag = 63

// tag returns a text, or its digest if it is too long for a tag.
func tag(text string) string {
	if len(text) <= maxTag {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:16])
}

// makeTime bounds the creation of a sandbox. Modal pulls the image first if it is new there.
const makeTime = 15 * time.Minute

// Make implements hosted.Provider.
func (a *account) Make(ctx context.Context, s *sandboxes.Spec) (*hosted.Rented, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, makeTime, fmt.Errorf("no sandbox was made at Modal within %s", makeTime))
	defer cancel()
	app, err := a.maker.Apps.FromName(ctx, a.app, &modal.AppFromNameParams{CreateIfMissing: true})
	if err != nil {
		return nil, fmt.Errorf("find the app %s: %w", a.app, refused(ctx, err))
	}
	image, err := a.maker.Images.FromRegistry(a.image, nil).Build(ctx, app, nil)
	if err != nil {
		return nil, fmt.Errorf("make the image %s ready: %w", a.image, refused(ctx, err))
	}
	params, mark := paramsOf(s), rand.Text()
	params.Tags = map[string]string{tagOwner: tag(s.Owner), tagRollout: string(s.Rollout), tagRun: s.RunID(), tagCreate: mark}
	made, err := a.maker.Sandboxes.Create(ctx, app, image, params)
	if err = refused(ctx, err); err != nil {
		if hosted.MayHave(err) {
			hosted.Forget(ctx, a, func(ctx context.Context) (ids []string, err error) {
				found, err := a.list(ctx, tagCreate, mark)
				for _, m := range found {
					ids = append(ids, m.ID)
				}
				return ids, err
			})
		}
		return nil, fmt.Errorf("make a sandbox: %w", err)
	}
	sb, err := a.client.Sandboxes.FromID(ctx, made.SandboxID, nil) // it asks nothing
	if err != nil {
		return nil, fmt.Errorf("make a sandbox: %w", err)
	}
	return &hosted.Rented{ID: sb.SandboxID, Remote: &machine{sb}, Release: func() { _ = sb.Detach() }}, nil // it has no error
}

// Bounds of a list of the sandboxes, and of the look at the tags of one.
const (
	listTime = time.Minute
	tagsTime = 30 * time.Second
)

// List implements hosted.Provider.
func (a *account) List(ctx context.Context, owner string) ([]hosted.Found, error) {
	return a.list(ctx, tagOwner, tag(owner))
}

// list lists the sandboxes with this tag that have not ended. The filter of the request is
// Modal's; list reads the tags itself, too.
func (a *account) list(ctx context.Context, name, value string) (found []hosted.Found, err error) {
	all, err := a.filtered(ctx, name, value)
	problems := []error{err}
	for _, sb := range all {
		tags, err := tagsOf(ctx, sb)
		problems = append(problems, err)
		if tags[name] == value {
			found = append(found, hosted.Found{ID: sb.SandboxID, Rollout: schema.ID(tags[tagRollout])})
		}
	}
	return found, errors.Join(problems...)
}

// tagsOf returns the tags of a sandbox; none if it is gone.
func tagsOf(ctx context.Context, sb *modal.Sandbox) (map[string]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, tagsTime, fmt.Errorf("no tags came from Modal within %s", tagsTime))
	defer cancel()
	tags, err := sb.GetTags(ctx, nil)
	if err = refused(ctx, err); err != nil && !hosted.IsGone(err) {
		return nil, fmt.Errorf("read the tags of the sandbox %s: %w", sb.SandboxID, err)
	}
	return tags, nil
}

// filtered returns the sandboxes that Modal lists for a tag.
func (a *account) filtered(ctx context.Context, name, value string) ([]*modal.Sandbox, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, listTime, fmt.Errorf("no list of the sandboxes came from Modal within %s", listTime))
	defer cancel()
	app, err := a.client.Apps.FromName(ctx, a.app, nil)
	if err = refused(ctx, err); hosted.IsGone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find the app %s: %w", a.app, err)
	}
	found, err := a.client.Sandboxes.List(ctx, &modal.SandboxListParams{AppID: app.AppID, Tags: map[string]string{name: value}})
	if err != nil {
		return nil, fmt.Errorf("list the sandboxes: %w", refused(ctx, err))
	}
	var list []*modal.Sandbox
	for sb, err := range found {
		if err != nil {
			return nil, fmt.Errorf("list the sandboxes: %w", refused(ctx, err))
		}
		list = append(list, sb)
	}
	return list, nil
}

// Remove implements hosted.Provider.
func (a *account) Remove(ctx context.Context, id string) error {
	sb, err := a.client.Sandboxes.FromID(ctx, id, nil) // it asks nothing
	if err == nil {
		_, err = sb.Terminate(ctx, nil)
	}
	return refused(ctx, err)
}

// refused makes a *hosted.RefusedError of an error of Modal's client, with the HTTP status
// that its gRPC code is like. If the context has ended it returns the cause.
func refused(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	says := func(text string) string { return plain.Line(text, far.MaxSays) }
	no := &hosted.RefusedError{Service: "Modal", Message: says(err.Error())}
	var (
		gone     modal.NotFoundError
		full     modal.ResourceExhaustedError
		exists   modal.AlreadyExistsError
		invalid  modal.InvalidError
		remote   modal.RemoteError
		conflict modal.ConflictError
	)
	switch {
	case errors.As(err, &gone):
		no.Status = http.StatusNotFound
	case errors.As(err, &full):
		no.Status = http.StatusTooManyRequests
	case errors.As(err, &exists), errors.As(err, &conflict):
		no.Status = http.StatusConflict
	case errors.As(err, &invalid), errors.As(err, &remote): // such as an image that it cannot pull
		no.Status = http.StatusBadRequest
	default:
		st, ok := status.FromError(err)
		if !ok {
			return fmt.Errorf("ask Modal: %s", no.Message)
		}
		no.Status, no.Message = statusOf(st.Code()), says(st.Code().String()+": "+st.Message())
		for _, detail := range st.Details() {
			if policy, ok := detail.(*pb.RPCRetryPolicy); ok {
				no.After = min(max(time.Duration(float64(policy.GetRetryAfterSecs())*float64(time.Second)), 0), maxAfter)
			}
		}
	}
	return no
}

// maxAfter bounds the wait that Modal may ask for.
const maxAfter = 5 * time.Minute

// statusOf returns the HTTP status that a code of gRPC is like.
func statusOf(c codes.Code) int {
	switch c {
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.NotFound:
		return http.StatusNotFound
	case codes.AlreadyExists, codes.Aborted:
		return http.StatusConflict
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.Unimplemented:
		return http.StatusNotImplemented
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	default:
		return http.StatusInternalServerError
	}
}
