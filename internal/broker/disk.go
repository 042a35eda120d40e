package broker

import (
	"fmt"

	"github.com/turngate/turngate/internal/kernel"
)

// storeLimit returns the size of the disk of a folder in bytes. The server counts
// the sizes that streams may reach against its limit, and a server that starts
// again with a lower limit makes no streams of new trainers. So the limit is not a part
// of the free room at the start, which is the server's default: the disk's size stays the
// same.
func storeLimit(dir string) (int64, error) {
	_, size, err := kernel.Disk(dir)
	if err != nil {
		return 0, fmt.Errorf("look for the size of the disk: %w", err)
	}
	return size, nil
}
