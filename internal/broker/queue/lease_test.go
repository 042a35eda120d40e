package queue

import (
	"testing"
	"time"
	"unsafe"
)

func TestElapsedTimeIsThatOfTheClockThatShowsMore(t *testing.T) {
	t.Parallel()
	from := time.Now()
	for _, c := range []struct {
		name                  string
		monotonic, wall, want time.Duration
	}{
		{"equal", time.Second, time.Second, time.Second},
		{"the machine was suspended", time.Second, time.Hour, time.Hour},
		{"the wall clock was set back", time.Minute, -time.Hour, time.Minute},
	} {
		to := from.Add(c.wall)
		// The second word of a time with a monotonic reading is that reading in ns.
		*(*int64)(unsafe.Add(unsafe.Pointer(&to), 8)) += int64(c.monotonic - c.wall)
		if to.Sub(from) != c.monotonic || to.Round(0).Sub(from.Round(0)) != c.wall {
			t.Fatalf("%s: the clocks show %s and %s", c.name, to.Sub(from), to.Round(0).Sub(from.Round(0)))
		}
		if got := elapsed(from, to); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
