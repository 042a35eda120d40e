package hosted_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/turngate/turngate/internal/backends/hosted"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// answers is a service that gives each request the same status.
type answers int

func (a answers) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: int(a), Header: http.Header{}, Body: http.NoBody}, nil
}

// leftovers is a provider with machines of an earlier process.
type leftovers struct {
	hosted.Service
	found []hosted.Found
}

func (*leftovers) Usable() error { return nil }

func (*leftovers) Make(context.Context, *sandboxes.Spec) (*hosted.Rented, error) {
	panic("a sweep makes nothing")
}

func (l *leftovers) List(context.Context, string) ([]hosted.Found, error) { return l.found, nil }

func (l *leftovers) Remove(ctx context.Context, id string) error {
	_, err := l.Ask(ctx, http.MethodDelete, "/sandboxes/"+id, nil, nil)
	return err
}

// TestARemovalEnds: also if the service refuses it for now each time, and the context has no
// end.
func TestARemovalEnds(t *testing.T) {
	for status, says := range map[answers]string{
		http.StatusInternalServerError: "E2B has not removed it within 30s",
		http.StatusTooManyRequests:     "E2B has not removed it within 30s",
		http.StatusForbidden:           "E2B answers 403",
		http.StatusNotFound:            "",
	} {
		synctest.Test(t, func(t *testing.T) {
			b := hosted.NewBackend(hosted.Settings{Service: "E2B"}, &leftovers{
				hosted.Service{Name: "E2B", URL: "http://e2b.test", Client: hosted.Client(status)}, []hosted.Found{{ID: "x"}},
			})
			n, err := b.Sweep(context.Background(), "w1", func(schema.ID) bool { return false })
			if n != 0 || (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
				t.Errorf("%d: %d, %v", status, n, err)
			}
		})
	}
}

// TestASweepEnds: in a bounded time, with more machines that the service does not remove than
// are removed at once.
func TestASweepEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var found []hosted.Found
		for i := range 200 {
			found = append(found, hosted.Found{ID: strconv.Itoa(i)})
		}
		b := hosted.NewBackend(hosted.Settings{Service: "E2B"}, &leftovers{
			hosted.Service{Name: "E2B", URL: "http://e2b.test", Client: hosted.Client(answers(http.StatusServiceUnavailable))}, found,
		})
		begun := time.Now() // of the bubble
		n, err := b.Sweep(context.Background(), "w1", func(schema.ID) bool { return false })
		if took := time.Since(begun); n != 0 || took > time.Minute || err == nil || !strings.Contains(err.Error(), "200 of 200 sandboxes are left") {
			t.Errorf("after %s: %d, %v", took, n, err)
		}
	})
}

// refusing is a provider whose service gives each request the same answer.
type refusing struct{ leftovers }

func (r *refusing) Make(ctx context.Context, _ *sandboxes.Spec) (*hosted.Rented, error) {
	_, err := r.Ask(ctx, http.MethodPost, "/sandboxes", nil, nil)
	return nil, err
}

// TestTheServiceIsBlamed: if it refuses the account or fails, and if it asks to wait until no
// time is left, but not for a request that is wrong.
func TestTheServiceIsBlamed(t *testing.T) {
	helper, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for status, blamed := range map[answers]struct{ service, refused bool }{
		http.StatusUnauthorized: {true, true}, http.StatusPaymentRequired: {true, true}, http.StatusForbidden: {true, true}, http.StatusTooManyRequests: {true, true},
		http.StatusServiceUnavailable: {true, false}, http.StatusBadRequest: {}, http.StatusNotFound: {},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := hosted.NewBackend(hosted.Settings{Name: "e2b", Service: "E2B", Helper: helper}, &refusing{leftovers{
				Service: hosted.Service{Name: "E2B", URL: "http://e2b.test", Client: hosted.Client(status)},
			}})
			ctx, cancel := context.WithCancelCause(t.Context())
			late := errors.New("no time is left for the phase")
			time.AfterFunc(10*time.Minute, func() { cancel(late) })
			_, err := b.Create(ctx, sandboxes.Spec{Owner: "w1", Rollout: "alpha-1", Attempt: 1})
			var e *sandboxes.ServiceError
			if says := "E2B answers " + strconv.Itoa(int(status)); err == nil || !strings.Contains(err.Error(), says) || errors.As(err, &e) != blamed.service {
				t.Fatalf("%d: %v", status, err)
			}
			if e != nil && (e.Backend != "e2b" || e.Refused != blamed.refused) {
				t.Errorf("%d: %+v", status, e)
			}
			if errors.Is(err, late) != (status == http.StatusTooManyRequests) {
				t.Errorf("%d: ended by %v", status, err)
			}
		})
	}
}

// TestNoErrorHasTheKey of the account, although the service quotes it: in a refusal, in one of
// another form, and in a text of an answer that is a success.
func TestNoErrorHasTheKey(t *testing.T) {
	const key = "e2b_0123456789abcdef0123"
	for path, answer := range map[string]string{"/refused": `{"message":"no key KEY"}`, "/detail": `{"detail":[{"msg":"KEY"}]}`, "/text": "no key KEY", "/ok": `{"errorMessage":"no key KEY"}`} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if path != "/ok" {
				w.WriteHeader(http.StatusUnauthorized)
			}
			_, _ = io.WriteString(w, strings.ReplaceAll(answer, "KEY", r.Header.Get("X-Api-Key")))
		}))
		s := hosted.Service{Name: "E2B", URL: srv.URL, Header: http.Header{"X-Api-Key": {key}}, Client: hosted.Client(hosted.Transport())}
		var said struct {
			Text string `json:"errorMessage"`
		}
		_, err := s.Ask(t.Context(), http.MethodGet, path, nil, &said)
		text := fmt.Sprint(err, said)
		if strings.Contains(text, key) || !strings.Contains(text, "[key]") || (err == nil) != (path == "/ok") {
			t.Errorf("%s: %s", path, text)
		}
		srv.Close()
	}
}
