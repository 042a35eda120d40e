package console_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/broker/modelcall"
	"github.com/turngate/turngate/internal/console"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
)

// With a trainer's credential the page of a running rollout shows the calls, the streamed
// text and the answers of that trainer, and nothing of another one.
func TestATrainerHearsItsOwnRollouts(t *testing.T) {
	n := testenv.StartNATS(t, "alpha", "beta")
	worker := n.Worker(t, "w1")
	client, err := modelcall.NewClient(worker, "w1", "i1")
	harness.Must(t, err)
	t.Cleanup(client.Close)
	complete := func(id schema.ID, text string) {
		t.Helper()
		q := harness.Request(id).WithDefaults()
		message, err := json.Marshal(map[string]string{"role": "user", "content": text})
		harness.Must(t, err)
		c := schema.Call{V: 1, Key: string(id) + "/1/1", Tag: schema.TagAgent, Dialect: "chat", Messages: []json.RawMessage{message}}
		harness.Must(t, client.Caller(q, nil).Complete(t.Context(), c, func(schema.Frame) error { return nil }))
	}
	desks := map[string]*desk{}
	for _, tid := range []string{"alpha", "beta"} {
		id := schema.ID(tid + "-1")
		_, err := worker.Messages.Put(t.Context(), subjects.State(id), &schema.State{V: schema.Version, ID: id, Trainer: tid, Status: schema.StatusRunning, Worker: "w1", Attempt: 1}, 0)
		harness.Must(t, err)
		server, err := modelcall.NewServer(n.Trainer(t, tid), tid)
		harness.Must(t, err)
		stop, err := server.Listen("", func(c modelcall.IncomingCall) {
			for _, f := range []struct {
				kind schema.FrameKind
				seq  int
				m    schema.Message
			}{
				{schema.FrameDelta, 0, &schema.Delta{V: 1, Delta: json.RawMessage(`{"content":"streamed by ` + tid + `"}`)}},
				{schema.FrameFinal, 1, &schema.Reply{V: 1, Message: json.RawMessage(`{"role":"assistant","content":"answered by ` + tid + `"}`), FinishReason: "stop"}},
			} {
				body, err := server.EncodeFrame(t.Context(), f.m)
				if err == nil {
					err = c.Send(modelcall.Frame{Kind: f.kind, Gen: "g1", Seq: f.seq, Body: body})
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
		harness.Must(t, err)
		t.Cleanup(stop)
		desks[tid] = newDesk(t, n.Trainer(t, tid), tid, nil)
	}
	feeds := map[string]<-chan event{}
	for _, tid := range []string{"alpha", "beta"} {
		other := map[string]string{"alpha": "beta", "beta": "alpha"}[tid]
		d := desks[tid]
		if code, text := get(t, d.browser, d.base+"/api/rollouts/"+other+"-1/live", nil); code != http.StatusNotFound {
			t.Errorf("%s: got %d %s", tid, code, text)
		}
		events, stop := d.feed(t, d.browser, "/api/rollouts/"+tid+"-1/live", "")
		defer stop()
		feeds[tid] = events
		for e := range events {
			if e.name == "begin" {
				break
			}
		}
	}
	complete("alpha-1", "\x1b[2J\u202efor alpha")
	complete("beta-1", "for beta")
	for tid, events := range feeds {
		var seen strings.Builder
		var call console.CallEntry
		for end := time.After(time.Minute); call.Answer == nil; {
			select {
			case e := <-events:
				seen.WriteString(e.data)
				var list []console.Entry
				if e.name != "events" {
					continue
				}
				harness.Must(t, json.Unmarshal([]byte(e.data), &list))
				for _, entry := range list {
					if entry.Call != nil && entry.Call.Answer != nil {
						call = *entry.Call
					}
				}
			case <-end:
				t.Fatalf("%s: no answer in %s", tid, &seen)
			}
		}
		other := map[string]string{"alpha": "beta", "beta": "alpha"}[tid]
		if text := seen.String(); call.Answer.Text != "answered by "+tid || !strings.Contains(text, "for "+tid) || strings.Contains(text, other+"\"") || strings.ContainsAny(text, "\x1b\u202e") || strings.Contains(text, `\u001b`) {
			t.Errorf("%s: got %s", tid, text)
		}
	}
}
