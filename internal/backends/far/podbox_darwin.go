package far

import (
	"fmt"
	"os"

	"github.com/turngate/turngate/internal/box"
)

// PodBox refuses: pods run turngate for Linux.
func PodBox([]string) int {
	fmt.Fprintln(os.Stderr, "box: this program is for macOS, and pods need the one for Linux")
	return box.ExitConfig
}
