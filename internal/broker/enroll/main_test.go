package enroll_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.ServerGoroutines()...) }
