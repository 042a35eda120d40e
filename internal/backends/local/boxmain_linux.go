package local

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/box"
)

// boxConfig is the configuration of a box of any backend. Only local boxes have
// a Root.
type boxConfig struct {
	box.Config
	Root *rootPlan `json:"root,omitempty"`
}

// BoxMain is the main function of the "box" sub-command. It takes no argument
// (configuration on stdin), the path of a configuration file, or "--nested". It
// returns the process's exit code.
func BoxMain(args []string) int {
	// Child processes must not inherit the descriptors of the box.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		fmt.Fprintln(os.Stderr, "box: keep descriptors:", err)
		return box.ExitConfig
	}
	if len(args) == 1 && args[0] == "--nested" {
		return box.Nested()
	}
	var in io.Reader = os.Stdin
	if len(args) == 1 {
		f, err := os.Open(args[0])
		if err != nil {
			fmt.Fprintln(os.Stderr, "box:", err)
			return box.ExitConfig
		}
		defer f.Close()
		in = f
	}
	if len(args) > 1 || os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "box: this is the first process of a sandbox; workers start it")
		return box.ExitConfig
	}
	var c boxConfig
	config := json.NewDecoder(in)
	if err := config.Decode(&c); err != nil {
		fmt.Fprintln(os.Stderr, "box: read the configuration:", err)
		return box.ExitConfig
	}
	c.Ahead = config.Buffered()
	if c.Root != nil {
		unix.Umask(0o022) // the worker may have another one; the root is for all users of the sandbox
		if err := c.Root.receive(c.FD); err != nil {
			fmt.Fprintln(os.Stderr, "box:", err)
			return box.ExitConfig
		}
		if err := c.Root.enter(); err != nil {
			fmt.Fprintln(os.Stderr, "box:", err)
			return box.ExitRoot
		}
	}
	return box.Serve(&c.Config)
}
