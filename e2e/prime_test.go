package e2e_test

import (
	"testing"

	"github.com/turngate/turngate/internal/backends/prime/primetest"
)

func TestRolloutsAtPrime(t *testing.T) {
	t.Parallel()
	s := primetest.Start(t)
	rolloutsAt(t, "prime", primetest.Image, s.Env(), s.Key)
	if left := s.Sandboxes(); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}
