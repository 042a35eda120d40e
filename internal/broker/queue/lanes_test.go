package queue

import (
	"testing"
	"time"
)

// The classes of a trainer's parked requests share its turns in a lane, and take
// turns among themselves.
func TestATrainersClassesHaveOneShareTogether(t *testing.T) {
	t.Parallel()
	l := newLanes()
	l.set(map[string]served{"alpha": {weight: 1, classes: []class{{1, "x"}, {1, "y"}, {2, "z"}}}, "beta": {weight: 2}})
	count, of := map[string]int{}, map[string]int{}
	for range 600 {
		q := l.next(time.Time{})
		if q.lane != 1 {
			l.gaveNone(q, false)
			q.skip = time.Now().Add(time.Hour)
			continue
		}
		l.gave(q)
		count[q.trainer]++
		of[q.consumer]++
	}
	if a, b := count["alpha"], count["beta"]; a < 190 || a > 200 || b < 385 || b > 400 {
		t.Fatalf("alpha has %d turns and beta %d", a, b)
	}
	if x, y := of["workers-p1-x"], of["workers-p1-y"]; x < 60 || x != y && x != y+1 && y != x+1 {
		t.Fatalf("turns %v", of)
	}
}

func TestAQueueThatIsSilentIsAskedLessAndLess(t *testing.T) {
	t.Parallel()
	l := newLanes()
	l.set(map[string]served{"alpha": {weight: 1}})
	q := l.next(time.Time{})
	before := time.Duration(0)
	for range 4 {
		l.gaveNothing(q)
		pause := q.skip.Sub(q.empty)
		if pause < 2*before || pause > silentMost {
			t.Fatalf("a pause of %s after one of %s", pause, before)
		}
		before = pause
	}
	l.gave(q)
	if q.silent != 0 || q.skip.After(time.Now()) {
		t.Fatal("it answers again, and is left out")
	}
}
