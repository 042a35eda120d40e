package anthropic_test

import (
	"net/http"
	"testing"

	"go.uber.org/goleak"

	"github.com/turngate/turngate/internal/gate/gatetest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(int) { http.DefaultClient.CloseIdleConnections() }))
}

func TestConformance(t *testing.T) { gatetest.Run(t, gatetest.Anthropic()) }

func FuzzAnthropicEncode(f *testing.F) { gatetest.FuzzEncode(f, gatetest.Anthropic()) }
