package e2e_test

import (
	"testing"

	"github.com/turngate/turngate/internal/backends/prime/primetest"
	"github.com/turngate/turngate/internal/testenv"
)

func TestRolloutsAtPrime(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	s := primetest.Start(t)
	rolloutsAt(t, "prime", primetest.Image, s.Env(), s.Key)
	if left := s.Sandboxes(); len(left) > 0 {
		t.Errorf("left: %+v", left)
	}
}
