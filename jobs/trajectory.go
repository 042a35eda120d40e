package jobs

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

// trajectoryOf makes the file of a trial with its trajectory, from its transcript. It
// is a convert.
func trajectoryOf(r *schema.Result, files map[string][]byte) (map[string][]byte, error) {
	transcript, ok := files[r.Transcript]
	if !ok {
		return nil, nil
	}
	var out bytes.Buffer
	if err := trajectory.Write(&out, bytes.NewReader(transcript), r); errors.Is(err, trajectory.ErrNoCalls) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("no trajectory: %w", err)
	}
	return map[string][]byte{"agent/trajectory.json": out.Bytes()}, nil
}
