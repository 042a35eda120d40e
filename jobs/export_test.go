package jobs

import (
	"context"

	"github.com/turngate/turngate/schema"
)

// PutWith is Put with other derived files.
func (j *Job) PutWith(ctx context.Context, r schema.Result, fetch Fetch, more func(*schema.Result, map[string][]byte) (map[string][]byte, error)) error {
	return j.putWith(ctx, r, fetch, more)
}

// CauseOf returns the cause that fits a result.
func (r Retries) CauseOf(res *schema.Result) string { return r.cause(res) }
