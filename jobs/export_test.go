package jobs

import (
	"context"

	"github.com/turngate/turngate/schema"
)

// PutWith is Put with other derived files.
func (j *Job) PutWith(ctx context.Context, r schema.Result, fetch Fetch, more func(*schema.Result, map[string][]byte) (map[string][]byte, error)) error {
	return j.putWith(ctx, r, fetch, more)
}

// WithFault returns the trials with a fault that the filter selects.
func (j *Job) WithFault(which func(*schema.Result) bool) []Trial { return j.withFault(which) }

// CauseOf returns the cause that fits a result.
func (r Retries) CauseOf(res *schema.Result) string { return r.cause(res) }

// Over returns the error of a job with these results; nil: no limit is reached.
func Over(l Limits, results []schema.Result) *LimitError { return newSpending(l, results).over() }
