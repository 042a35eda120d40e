package permissions_test

import (
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/subjects"
)

// ack is the server's answer to a message of a stream.
type ack struct {
	Stream    string `json:"stream"`
	Seq       uint64 `json:"seq"`
	Duplicate bool   `json:"duplicate"`
	Error     *struct {
		Code int    `json:"err_code"`
		Text string `json:"description"`
	} `json:"error"`
}

func put(t *testing.T, nc *nats.Conn, m *nats.Msg) ack {
	t.Helper()
	answer, err := nc.RequestMsg(m, 5*time.Second)
	harness.Must(t, err)
	var a ack
	if len(answer.Data) > 0 {
		harness.Must(t, json.Unmarshal(answer.Data, &a))
	}
	return a
}

func message(subject, data string, header ...string) *nats.Msg {
	m := &nats.Msg{Subject: subject, Data: []byte(data), Header: nats.Header{}}
	for i := 0; i < len(header); i += 2 {
		m.Header.Set(header[i], header[i+1])
	}
	return m
}

// TestMessageIDsAreATrainersOwn lets alpha submit with the id of beta's rollout
// first. Beta's submit is no duplicate; its second one is.
func TestMessageIDsAreATrainersOwn(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		alpha, beta := w.as(t, role{"trainer", "alpha"}), w.as(t, role{"trainer", "beta"})
		if a := put(t, alpha, message(subjects.Request(2, "alpha"), "x", "Nats-Msg-Id", "beta-1")); a.Error != nil || a.Duplicate {
			t.Fatalf("%+v", a)
		}
		if a := put(t, beta, message(subjects.Request(2, "beta"), "x", "Nats-Msg-Id", "beta-1")); a.Error != nil || a.Duplicate {
			t.Errorf("beta's request was not stored: %+v", a)
		}
		if a := put(t, beta, message(subjects.Request(2, "beta"), "x", "Nats-Msg-Id", "beta-1")); !a.Duplicate {
			t.Errorf("the control failed, a second message with the id is no duplicate: %+v", a)
		}
	})
}

// TestOpenBatchesAreATrainersOwn lets alpha open batches and never end them, until
// the server refuses alpha. Beta's batch is stored.
func TestOpenBatchesAreATrainersOwn(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		alpha, beta := w.as(t, role{"trainer", "alpha"}), w.as(t, role{"trainer", "beta"})
		open := func(nc *nats.Conn, tid, id string) ack {
			return put(t, nc, message(subjects.Request(2, tid), "x", "Nats-Batch-Id", id, "Nats-Batch-Sequence", "1"))
		}
		full := false
		for i := 0; i < 2000 && !full; i++ {
			full = open(alpha, "alpha", "endless"+strconv.Itoa(i)).Error != nil
		}
		if !full {
			t.Fatal("the control failed: alpha can open any number of batches, so that there is nothing to take from beta")
		}
		if a := open(beta, "beta", "b"); a.Error != nil {
			t.Fatalf("beta cannot open a batch: %+v", a.Error)
		}
		if a := put(t, beta, message(subjects.Request(2, "beta"), "x", "Nats-Batch-Id", "b", "Nats-Batch-Sequence", "2", "Nats-Batch-Commit", "1")); a.Error != nil || a.Seq == 0 {
			t.Errorf("beta's batch was not stored: %+v", a)
		}
	})
}

// TestRollupsReachTheOwnBucketOnly lets alpha replace its whole bucket by one
// message. Beta's bundles stay.
func TestRollupsReachTheOwnBucketOnly(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		alpha := w.as(t, role{"trainer", "alpha"})
		for _, tid := range []string{"alpha", "beta"} {
			nc := w.as(t, role{"trainer", tid})
			for i := range 3 {
				if a := put(t, nc, message(subjects.ObjectChunks(subjects.TasksBucket(tid), fmt.Sprint(i)), "chunk")); a.Error != nil {
					t.Fatalf("%+v", a.Error)
				}
			}
		}
		rolled := put(t, alpha, message(subjects.ObjectMeta(subjects.TasksBucket("alpha"), "x"), "{}", "Nats-Rollup", "all"))
		if n := w.messages(t, subjects.ObjectStream(subjects.TasksBucket("beta"))); n != 3 {
			t.Errorf("beta has %d chunks, want 3", n)
		}
		if n := w.messages(t, subjects.ObjectStream(subjects.TasksBucket("alpha"))); rolled.Error == nil && n != 1 {
			t.Errorf("the control failed: alpha's roll-up was taken, and left %d messages", n)
		}
		if a := tryPut(alpha, message(subjects.ObjectMeta(subjects.TasksBucket("beta"), "x"), "{}", "Nats-Rollup", "all")); a {
			t.Error("alpha's roll-up of beta's bucket was answered")
		}
		if n := w.messages(t, subjects.ObjectStream(subjects.TasksBucket("beta"))); n != 3 {
			t.Errorf("beta has %d chunks, want 3", n)
		}
	})
}

// tryPut reports whether a stream answers.
func tryPut(nc *nats.Conn, m *nats.Msg) bool {
	_, err := nc.RequestMsg(m, 150*time.Millisecond)
	return err == nil
}

func (w *world) messages(t *testing.T, stream string) uint64 {
	t.Helper()
	s, err := w.js.Stream(t.Context(), stream)
	harness.Must(t, err)
	return s.CachedInfo().State.Msgs
}

// TestAFullTrainerTakesNothingFromOthers fills alpha's queue. Beta submits.
func TestAFullTrainerTakesNothingFromOthers(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		s, err := w.js.Stream(t.Context(), subjects.Queue("alpha"))
		harness.Must(t, err)
		c := s.CachedInfo().Config
		c.MaxMsgs = 3
		_, err = w.js.UpdateStream(t.Context(), c)
		harness.Must(t, err)
		alpha, beta := w.as(t, role{"trainer", "alpha"}), w.as(t, role{"trainer", "beta"})
		for i := range 4 {
			a := put(t, alpha, message(subjects.Request(2, "alpha"), "x"))
			if full := a.Error != nil; full != (i == 3) {
				t.Errorf("alpha's request %d: %+v", i+1, a)
			}
		}
		if a := put(t, beta, message(subjects.Request(2, "beta"), "x")); a.Error != nil {
			t.Errorf("beta's request was refused: %+v", a.Error)
		}
	})
}
