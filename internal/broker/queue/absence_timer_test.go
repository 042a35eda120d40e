package queue

import (
	"testing"
	"time"
)

func TestAnAbsenceTimerBeginsAnewAfterABreak(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	var v absenceTimer
	for _, look := range []struct{ at, want time.Duration }{
		{0, 0},
		{4 * time.Second, 4 * time.Second},
		{9 * time.Second, 9 * time.Second},
		{20 * time.Second, 0}, // a gap of 11 s
		{29 * time.Second, 9 * time.Second},
	} {
		if got := v.look(begin.Add(look.at), 10*time.Second); got != look.want {
			t.Errorf("at %s: %s, want %s", look.at, got, look.want)
		}
	}
}
