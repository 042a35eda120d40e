package quiet

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestARepeatedFailureIsLoggedAtGrowingIntervals counts the lines about an upstream that
// is away, and those about another failure.
func TestARepeatedFailureIsLoggedAtGrowingIntervals(t *testing.T) {
	var q Lines
	start := time.Unix(1000, 0)
	var logged []int
	lost := 0
	for s := range 200 {
		if skipped, speak := q.Speak(fmt.Sprintf("port %d: it cannot be reached", 4000+s), start.Add(time.Duration(s)*time.Second)); speak {
			logged = append(logged, s)
			lost += skipped
		}
		if s == 15 {
			if _, speak := q.Speak("a bad answer", start.Add(15*time.Second)); !speak {
				t.Error("another failure was not logged")
			}
		}
	}
	if got := fmt.Sprint(logged); got != "[0 10 30 70 150]" || lost != 150-4 {
		t.Errorf("logged at %s, %d lines were left out", got, lost)
	}
	if _, speak := q.Speak("port 1: it cannot be reached", start.Add(time.Hour)); !speak {
		t.Error("an old failure was not logged when it came again")
	}
	for i := range 10 * maxKnown {
		q.Speak(strings.Repeat("x", i), start)
	}
	if len(q.all) > maxKnown {
		t.Errorf("%d failures are kept", len(q.all))
	}
}
