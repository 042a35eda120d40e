package jobs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"

	"github.com/turngate/turngate/tasks"
)

// Digest returns the SHA-256 in hex of a task's bundle, instruction and
// task.toml. It does not cover the values of the submitter's variables. With an
// error, the digest covers the files that can be read.
func Digest(dir string, bundle []byte) (string, error) {
	all := sha256.New()
	var wrong []error
	for _, name := range []string{"instruction.md", "task.toml"} {
		data, err := tasks.ReadFile(dir, name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			wrong = append(wrong, fmt.Errorf("read the task: %w", err))
		}
		fmt.Fprintf(all, "%s %d\n", name, len(data))
		all.Write(data)
	}
	all.Write(bundle)
	return hex.EncodeToString(all.Sum(nil)), errors.Join(wrong...)
}
