package trainer_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
	"github.com/turngate/turngate/trainer"
)

// vectorCall is a call of schema/testdata/need_full.json, with its answer.
type vectorCall struct {
	Attempt, Number, Base, Keep int
	Digest, Answer              string
	vectorParts
	Meant vectorParts
}

type vectorParts struct {
	Messages []json.RawMessage
	Tools    json.RawMessage
	Params   schema.SortedMap[json.RawMessage]
}

// TestNeedFullVectors asks with the calls of the golden vectors, which clients in
// other languages use too: each is answered, asked for whole, or refused.
func TestNeedFullVectors(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(filepath.Join("..", "schema", "testdata", "need_full.json"))
	if err != nil {
		t.Fatal(err)
	}
	var all []struct {
		Name  string
		Calls []vectorCall
	}
	if err := json.Unmarshal(data, &all); err != nil || len(all) == 0 {
		t.Fatal(err, "no vectors")
	}
	b := newBench(t)
	given := make(chan []byte, 100) // digests of the calls as they are handed out; no vector has so many
	serve(t, b.trainer, func(_ context.Context, c *trainer.Call) (*schema.Reply, error) {
		given <- harness.HashesOf(&c.Call).Digest()
		return text("ok"), nil
	})
	nc := b.connect(t)
	for i, vector := range all {
		t.Run(vector.Name, func(t *testing.T) {
			for _, c := range vector.Calls {
				kind := c.ask(t, nc, schema.ID(fmt.Sprintf("alpha-v%d", i)))
				want := schema.FrameKind(c.Answer)
				if c.Answer == "whole" {
					want = schema.FrameFinal
				}
				if kind != want {
					t.Fatalf("call %d got %s, want %s", c.Number, kind, want)
				}
				meant := schema.Call{Messages: c.Meant.Messages, Tools: c.Meant.Tools, Params: c.Meant.Params}
				if kind == schema.FrameFinal && !bytes.Equal(<-given, harness.HashesOf(&meant).Digest()) {
					t.Errorf("call %d is not what its worker meant", c.Number)
				}
			}
		})
	}
}

// ask sends the call as a worker does, and returns the kind of the answer.
func (c *vectorCall) ask(t *testing.T, nc *nats.Conn, rollout schema.ID) schema.FrameKind {
	t.Helper()
	key := schema.Key{Rollout: rollout, Attempt: c.Attempt, Call: c.Number}
	call := schema.Call{V: schema.Version, Key: key.String(), Tag: schema.TagAgent, Dialect: "chat", Messages: c.Messages, Tools: c.Tools, Params: c.Params, Base: c.Base, Keep: c.Keep}
	var err error
	if call.Digest, err = hex.DecodeString(c.Digest); err != nil {
		t.Fatal(err)
	}
	body, err := schema.Encode(&call)
	if err != nil {
		t.Fatal(err)
	}
	inbox := fmt.Sprintf("_INBOX.gate.alpha.fake.i1.%032x", time.Now().UnixNano())
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.PublishMsg(&nats.Msg{Subject: subjects.Call(key, "0"), Reply: inbox, Data: body}); err != nil {
		t.Fatal(err)
	}
	for {
		m, err := sub.NextMsg(10 * time.Second)
		if err != nil {
			t.Fatalf("call %d: %v", c.Number, err)
		}
		switch kind := schema.FrameKind(m.Header.Get(subjects.HeaderKind)); kind {
		case schema.FrameAccept, schema.FrameBeat:
		default:
			return kind
		}
	}
}
