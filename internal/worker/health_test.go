package worker

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"github.com/turngate/turngate/sandboxes"
)

// service is a backend whose checks fail until it works.
type service struct {
	sandboxes.Backend
	works  atomic.Bool
	checks atomic.Int64
}

func (*service) Name() string { return "rented" }

func (s *service) Check(context.Context) error {
	s.checks.Add(1)
	if s.works.Load() {
		return nil
	}
	return errors.New("answers 503:\nno capacity")
}

// TestABackendFailsUntilACheckSucceeds: a refusal of the account counts at once, another
// failure if it is the second in a row. A rollout is spared once.
func TestABackendFailsUntilACheckSucceeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &service{}
		h := NewHealth([]sandboxes.Backend{s}, zerolog.Nop())
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); h.run(ctx) }()
		defer func() { stop(); <-ended }()
		busy := &sandboxes.ServiceError{Backend: "rented", Err: errors.New("answers 500")}
		refused := &sandboxes.ServiceError{Backend: "rented", Refused: true, Err: errors.New("answers 401")}
		wants := func(step string, spared, want bool, reason string) {
			t.Helper()
			if got := h.failing()["rented"]; spared != want || got != reason {
				t.Errorf("%s: spared %t, reason %q", step, spared, got)
			}
		}
		wants("another error", h.failed("t-1", false, nil), false, "")
		wants("the first failure", h.failed("t-1", false, busy), false, "")
		h.made("rented")
		wants("not in a row", h.failed("t-1", false, busy), false, "")
		wants("in a row", h.failed("t-1", false, busy), true, "answers 500")
		wants("one whose agent ran", h.failed("t-2", true, busy), false, "answers 500")
		wants("another rollout", h.failed("t-2", false, busy), true, "answers 500")
		<-time.After(time.Hour) // of the bubble
		synctest.Wait()
		if n := s.checks.Load(); n < 60 || n > 70 {
			t.Errorf("%d checks in an hour", n)
		}
		wants("after checks", h.failed("t-2", false, nil), false, "answers 503: no capacity")
		s.works.Store(true)
		<-time.After(2 * mostPause)
		synctest.Wait()
		wants("it works again", false, false, "")
		wants("a refusal", h.failed("t-1", false, refused), false, "answers 401")
	})
}
