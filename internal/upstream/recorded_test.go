package upstream_test

import (
	"path/filepath"
	"testing"

	"github.com/turngate/turngate/internal/upstream/upstreamtest"
)

// TestRecordedEngine replays answers of vLLM. The tests of `make engines` check
// that vLLM still gives them.
func TestRecordedEngine(t *testing.T) {
	t.Parallel()
	upstreamtest.Run(t, "http://127.0.0.1:8000", func(t *testing.T, name string) *upstreamtest.Tape {
		return upstreamtest.Replay(t, filepath.Join("testdata", "recordings", "vllm", name+".json"))
	})
}
