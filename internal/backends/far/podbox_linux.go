package far

import (
	"encoding/json"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/turngate/turngate/internal/box"
)

// PodBox is the main function of the first process of a container beside the one where
// Serve runs. Serve configures it. It returns the process's exit code.
func PodBox(args []string) int {
	// Child processes must not inherit the descriptors of the box.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		fmt.Fprintln(os.Stderr, "box: keep descriptors:", err)
		return box.ExitConfig
	}
	if len(args) > 0 || os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "box: this is the first process of a container; a worker starts it")
		return box.ExitConfig
	}
	c, err := configured()
	if err != nil {
		fmt.Fprintln(os.Stderr, "box:", err)
		return box.ExitConfig
	}
	return box.Serve(c)
}

// configured connects to Serve and returns the configuration, with the connection and the
// variables of the image.
func configured() (*box.Config, error) {
	dir, err := os.Getwd()
	if err != nil {
		dir = "" // the image names a folder that it lacks
	}
	conn, err := net.Dial("unix", filepath.Join(runPath, socketName))
	if err != nil {
		return nil, fmt.Errorf("reach the container beside: %w", err)
	}
	defer conn.Close()
	if err := json.NewEncoder(conn).Encode(hello{Workdir: dir}); err != nil {
		return nil, fmt.Errorf("reach the container beside: %w", err)
	}
	c := &box.Config{}
	if err := readLine(conn, c); err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	f, err := conn.(*net.UnixConn).File()
	if err != nil {
		return nil, fmt.Errorf("keep the connection: %w", err)
	}
	defer f.Close()
	if c.FD, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3); err != nil {
		return nil, fmt.Errorf("keep the connection: %w", err)
	}
	var own []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "KUBERNETES_") { // the address of the cluster's API server
			own = append(own, v)
		}
	}
	c.Env = append(own, c.Env...)
	return c, nil
}
