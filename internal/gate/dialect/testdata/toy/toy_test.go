package toy_test

import (
	"net/http"
	"testing"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/gate/gatetest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(int) { http.DefaultClient.CloseIdleConnections() }))
}

func TestConformance(t *testing.T) { gatetest.Run(t, gatetest.Toy()) }

func FuzzToyEncode(f *testing.F) { gatetest.FuzzEncode(f, gatetest.Toy()) }
