package worker

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/turngate/turngate/internal/owned"
)

// owner marks the sandboxes of the process in a place. That of the first place marks them
// by the worker alone, so that they are found although the state folder was lost.
func (w *Worker) owner(place int) string {
	owner := cmp.Or(w.cfg.Owner, w.queue.ID())
	if place > 0 {
		owner += "-" + strconv.Itoa(place)
	}
	return owner
}

// OwnerOf returns the owner of the sandboxes of a worker with this state folder, which must
// exist. The folder keeps the name, also where it is moved to or mounted. A new folder gets a
// name from the worker, the host and the folder's path: two workers with one name, for example
// of two NATS systems, have different ones, and a folder that was lost gets the same one again.
func OwnerOf(worker, state string) (string, error) {
	file := filepath.Join(state, "worker.owner")
	data, err := owned.Read(file)
	if errors.Is(err, fs.ErrNotExist) {
		var fresh string
		if fresh, err = newOwner(worker, state); err == nil {
			err = owned.Create(file, []byte(fresh))
		}
		if err == nil || errors.Is(err, fs.ErrExist) { // of a process that starts beside this one
			data, err = owned.Read(file)
		}
	}
	owner := strings.TrimSpace(string(data))
	if err == nil {
		err = checkOwner(owner)
	}
	if err != nil {
		return "", fmt.Errorf("read the name of the owner of sandboxes in %s: %w", file, err)
	}
	return owner, nil
}

// checkOwner allows the longest name of a worker with the digest of newOwner. Backends put the
// owner and the number of a place into names and labels of up to 80 characters.
func checkOwner(owner string) error {
	if !regexp.MustCompile(`^[A-Za-z0-9_-]{1,70}$`).MatchString(owner) {
		return fmt.Errorf("%.100q is not valid: want 1 to 70 letters, digits, _ or -", owner)
	}
	return nil
}

func newOwner(worker, state string) (string, error) {
	path, err := filepath.EvalSymlinks(state)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return "", err
	}
	host, _ := os.Hostname() // without a name the path must do
	sum := sha256.Sum256([]byte(host + "\x00" + path))
	return worker + "-" + hex.EncodeToString(sum[:4]), nil
}
