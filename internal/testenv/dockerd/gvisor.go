package dockerd

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/turngate/turngate/internal/testenv"
)

// GVisor returns gVisor's runtime, with further arguments. Without it the test is skipped.
func GVisor(t testing.TB, args ...string) Runtime {
	t.Helper()
	cache, err := os.UserCacheDir()
	must(t, err)
	path := filepath.Join(cache, "turngate", "gvisor", "runsc")
	if _, err = os.Stat(path); err != nil {
		err = fmt.Errorf("%w: build it with `make gvisor`", err)
	}
	testenv.Need(t, "gvisor", err)
	return Runtime{Path: path, Args: append([]string{"--platform=systrap", "--host-uds=open"}, args...)}
}
