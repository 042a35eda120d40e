package main

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/turngate/turngate/internal/operate"
)

// TestTopFits draws many workers and lanes, and hostile names, into small terminals.
func TestTopFits(t *testing.T) {
	s := &topScreen{At: time.Unix(0, 0), err: errors.New("it is\nfar \x1b[31maway"), ActivitySum: operate.ActivitySum{Phases: map[string]int{"agent\u202e\x1b]0;x\a": 3, "verify": 1}}}
	age := 61.0
	for range 100 {
		s.Workers = append(s.Workers, topWorker{Worker: strings.Repeat("w", 40), Running: 1, Slots: 4, Draining: true})
		s.Lanes = append(s.Lanes, queueEntry{Trainer: strings.Repeat("t", 20), Lane: "p1", Queued: 5, Oldest: &age})
	}
	f := &topFlags{sort: sortName}
	for _, size := range [][2]int{{80, 24}, {60, 12}, {200, 60}, {30, 5}} {
		lines, err := f.lines(s, size[0], size[1])
		if err != nil {
			t.Fatal(err)
		}
		if len(lines) > size[1] {
			t.Errorf("%v: %d lines", size, len(lines))
		}
		for _, l := range lines {
			if utf8.RuneCountInString(l) > size[0] || strings.ContainsAny(l, "\x1b\a\n\u202e") {
				t.Errorf("%v: %q", size, l)
			}
		}
		text := strings.Join(lines, "\n")
		if size[1] > 20 && (!strings.Contains(text, " more") || !strings.Contains(text, "1m1s") || !strings.Contains(text, "draining")) {
			t.Errorf("%v:\n%s", size, text)
		}
	}
	lines, err := f.lines(s, 0, 0)
	if err != nil || len(lines) < 200 {
		t.Errorf("%d lines, %v", len(lines), err)
	}
}

// TestTopCountsTheSlotsOfAHandOverOnce: the process that follows has the slots of the one
// that drains.
func TestTopCountsTheSlotsOfAHandOverOnce(t *testing.T) {
	s := &topScreen{At: time.Unix(0, 0), Workers: []topWorker{
		{Worker: "w1", Running: 1, Slots: 2, Draining: true}, {Worker: "w1", Running: 1, Slots: 2}, {Worker: "w2", Running: 3, Slots: 4, Draining: true},
	}}
	lines, err := (&topFlags{sort: sortName}).lines(s, 0, 0)
	if text := strings.Join(lines, "\n"); err != nil || !strings.Contains(text, "3 (2 draining), 5 of 5 slots used") {
		t.Errorf("%s, %v", text, err)
	}
}
