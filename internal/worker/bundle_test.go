package worker

import (
	"errors"
	"fmt"
	"testing"

	"github.com/turngate/turngate/internal/broker"
)

func TestABundleThatNoTryCanRead(t *testing.T) {
	t.Parallel()
	for _, err := range []error{broker.ErrNotFound, broker.ErrDigest, &broker.TooLargeError{What: "object x", Size: 2, Limit: 1}} {
		if !unusable(fmt.Errorf("read it: %w", err)) {
			t.Errorf("%v: it would be read again", err)
		}
	}
	if unusable(nil) || unusable(errors.New("no connection")) {
		t.Error("another try may succeed")
	}
}
