package broker

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"syscall"
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

// TestAnErrorOfTheStoreIsReported: an error of writing a file is distinguished from other
// errors.
func TestAnErrorOfTheStoreIsReported(t *testing.T) {
	var got []error
	l := &serverLog{log: zerolog.Nop(), failed: func(err error) { got = append(got, err) }}
	l.Errorf("publish violation of %s: %v", "alpha", errors.New("no space left on device"))
	l.Errorf("critical write error of %s: %v", "REC", &os.PathError{Op: "write", Path: "/x/1.blk", Err: syscall.ENOSPC})
	if len(got) != 1 || got[0].Error() != "the NATS server cannot write its store: write /x/1.blk: no space left on device" {
		t.Errorf("got %v", got)
	}
}
