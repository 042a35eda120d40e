package e2e_test

import (
	"testing"

	"github.com/turngate/turngate/internal/backends/modal/modaltest"
	"github.com/turngate/turngate/internal/testenv"
)

func TestRolloutsAtModal(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	s := modaltest.Start(t)
	rolloutsAt(t, "modal", modaltest.Image, s.Env(), s.TokenSecret, "--modal-app", "rollouts")
	if left := s.Sandboxes(); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}
