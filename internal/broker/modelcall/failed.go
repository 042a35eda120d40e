package modelcall

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/schema"
)

// noTrainerError reports that no trainer answered a call within its budget.
type noTrainerError struct {
	key    string
	waited time.Duration // the part of its budget that was used: waits without an answer, and pauses between rounds
	last   *schema.Fault // of the last round; nil: no trainer answered, or it went silent
}

func (e *noTrainerError) Error() string {
	s := fmt.Sprintf("no trainer answered call %s within %s", e.key, e.waited.Round(time.Millisecond))
	if e.last != nil {
		s += ": " + e.last.Error()
	}
	return s
}

// asFault returns the fault of a call that failed at the given stage of a rollout. An
// error that concerns the worker alone stays as it is.
func asFault(stage string, err error) error {
	var none *noTrainerError
	var large *broker.TooLargeError
	var full *broker.FullError
	switch {
	case errors.As(err, &none):
		f := schema.Faultf(stage, schema.CodeNoTrainer, schema.WhoTrainer, "%v", err)
		f.Status = http.StatusServiceUnavailable
		return f
	case errors.As(err, &large):
		f := schema.Faultf(stage, schema.CodeTooLarge, schema.WhoAgent, "%v", large)
		f.Status, f.AgentMessage = http.StatusRequestEntityTooLarge, "The request is too large: "+large.Error()
		return f
	case errors.As(err, &full): // only a large call is stored in a bucket
		f := schema.Faultf(stage, schema.CodeFull, schema.WhoTrainer, "%v", full)
		f.Status, f.AgentMessage = http.StatusRequestEntityTooLarge, "The request is too large to be stored."
		return f
	default:
		return err
	}
}
