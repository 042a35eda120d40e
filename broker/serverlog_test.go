package broker

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

func TestTheServersLogIsBounded(t *testing.T) {
	var out bytes.Buffer
	l := &serverLog{log: zerolog.New(&out)}
	for n := range 100_000 {
		l.Errorf("publish violation %d", n)
	}
	l.Warnf("something else")
	if n := bytes.Count(out.Bytes(), []byte("\n")); n < logBurst+1 || n > logBurst+10 {
		t.Errorf("%d lines", n)
	}
	now := time.Now()
	for n := range logBurst {
		if _, ok := l.admit("x", now); !ok {
			t.Fatalf("message %d is left out", n)
		}
	}
	for range 3 {
		if _, ok := l.admit("x", now); ok {
			t.Error("too many messages")
		}
	}
	got := fmt.Sprint(l.admit("x", now.Add(logEvery)))
	if got != "3 true" {
		t.Errorf("got %s", got)
	}
}
