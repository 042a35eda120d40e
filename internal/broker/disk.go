package broker

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// storeLimit returns the size of the disk of a folder in bytes. The server counts
// the sizes that streams may reach against its limit, and a server that starts
// again with a lower limit does not load them. So the limit is not the free room
// at the start, which is the server's default: the disk's size stays the same.
func storeLimit(dir string) (int64, error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return 0, fmt.Errorf("look for the size of the disk of %s: %w", dir, err)
	}
	return int64(disk.Blocks) * disk.Bsize, nil
}
