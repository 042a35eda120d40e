package history_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/gate/gatetest"
	"github.com/turngate/turngate/internal/gate/history"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

// agentTalk is the current conversation of an agent.
type agentTalk struct {
	texts []string
	tools []string
	param int
	odd   bool // a member has a name that is not plain
}

func (h *agentTalk) body(k gatetest.Talk) string {
	body := k.Body(h.texts, h.tools, h.param)
	if h.odd {
		body = strings.TrimSuffix(body, "}") + `,"\u006fdd":1}`
	}
	return body
}

// edit changes a conversation as agents do: it continues, changes earlier
// messages, compacts, branches off, or changes its tools.
func (h *agentTalk) edit(t *rapid.T) {
	text := func() string { return rapid.StringMatching(`[a-c]{0,3}`).Draw(t, "text") }
	switch rapid.SampledFrom([]string{"on", "on", "on", "change", "cut", "compact", "insert", "tools", "param", "odd", "same"}).Draw(t, "edit") {
	case "on":
		for range rapid.IntRange(1, 3).Draw(t, "messages") {
			h.texts = append(h.texts, text())
		}
	case "change":
		h.texts[rapid.IntRange(0, len(h.texts)-1).Draw(t, "at")] = text()
	case "cut":
		h.texts = h.texts[:rapid.IntRange(1, len(h.texts)).Draw(t, "length")]
	case "compact":
		h.texts = append([]string{"summary " + text()}, h.texts[len(h.texts)-rapid.IntRange(0, min(len(h.texts), 2)).Draw(t, "kept"):]...)
	case "insert":
		h.texts = slices.Insert(h.texts, rapid.IntRange(0, len(h.texts)).Draw(t, "at"), text())
	case "tools":
		h.tools = rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b"}), 0, 2).Draw(t, "tools")
	case "odd":
		h.odd = !h.odd
	case "param":
		h.param = rapid.IntRange(1, 2).Draw(t, "param")
	}
}

// rebuilder is a trainer that keeps every call whole.
type rebuilder struct {
	mu    sync.Mutex
	calls map[int]schema.Call
	errs  []string
}

func (r *rebuilder) answer(_ context.Context, c schema.Call, _ func(schema.Frame) error) (schema.Reply, error) {
	key, err := schema.ParseKey(c.Key)
	delta := c.Delta()
	var data []byte
	if err == nil {
		data, err = schema.Encode(&delta)
	}
	var got schema.Call
	if err == nil {
		err = schema.Decode(data, &got)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil && got.Base != 0 {
		base, known := r.calls[got.Base]
		base.Messages = slices.Clip(base.Messages)
		if !known { // the base is still being answered, so the call is requested whole
			got = c
		} else if !got.Rebuild(&base) {
			err = fmt.Errorf("base %d does not fit", got.Base)
		}
	}
	if err == nil && !bytes.Equal(harness.HashesOf(&got).Digest(), c.Digest) {
		err = fmt.Errorf("%s was rebuilt", gatetest.Shown(got))
	}
	if err != nil {
		r.errs = append(r.errs, fmt.Sprintf("%s: %v", gatetest.Shown(c), err))
	}
	r.calls[key.Call] = got
	return gatetest.Text("ok"), nil
}

// TestAnyHistoryIsRebuilt: for any history of several conversations, one after
// the other or side by side, and for any memory bound, the trainer rebuilds the
// same call from the transferred parts as a fresh decoder reads.
func TestAnyHistoryIsRebuilt(t *testing.T) {
	for _, f := range gatetest.Fixtures() {
		t.Run(f.Dialect.Name(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				trainer := &rebuilder{calls: map[int]schema.Call{}}
				memory := gate.NewMemory(rapid.SampledFrom([]int64{0, 400, 1 << 20}).Draw(t, "memory"), 0)
				r := schema.Request{Gate: schema.GateOptions{MaxRepeats: 1 << 30}}.WithDefaults()
				session := gate.Open(context.Background(), gate.Config{
					Rollout: "alpha-1", Attempt: 1, ModelName: "m", Options: r.Gate, Model: &gatetest.Model{Answer: trainer.answer},
					Memory: memory, Dialects: gate.Dialects(), Log: zerolog.Nop(),
				})
				defer session.Close()
				agents := make([]agentTalk, rapid.IntRange(1, 4).Draw(t, "conversations"))
				for i := range agents {
					agents[i] = agentTalk{texts: []string{"begin"}, param: 1}
				}
				asked := 0
				for range rapid.IntRange(1, 12).Draw(t, "rounds") {
					together := map[string]bool{} // equal calls at once would wait for each other
					for range rapid.IntRange(1, 3).Draw(t, "together") {
						h := &agents[rapid.IntRange(0, len(agents)-1).Draw(t, "conversation")]
						h.edit(t)
						together[h.body(f.Talk)] = true
					}
					var all sync.WaitGroup
					for body := range together {
						asked++
						all.Go(func() {
							req := httptest.NewRequest(http.MethodPost, f.Talk.Path, strings.NewReader(body))
							req.Header.Set("Authorization", "Bearer "+session.Key())
							w := httptest.NewRecorder()
							if session.ServeHTTP(w, req); w.Code != http.StatusOK {
								t.Errorf("%s: %d %s", body, w.Code, w.Body)
							}
						})
					}
					all.Wait()
					for body := range together {
						checkRebuilt(t, f, trainer, body)
					}
				}
				if len(trainer.errs) > 0 || len(trainer.calls) != asked {
					t.Fatalf("%d of %d calls: %s", len(trainer.calls), asked, trainer.errs)
				}
			})
		})
	}
}

// checkRebuilt looks for the call of a body.
func checkRebuilt(t *rapid.T, f gatetest.Fixture, trainer *rebuilder, body string) {
	fresh, err := gatetest.DecodeWith(history.NewReader(f.Dialect, history.NewMemory(0), history.AsSent), gatetest.Posted(f.Talk.Path), []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	want := harness.HashesOf(&fresh.Call).Digest()
	trainer.mu.Lock()
	defer trainer.mu.Unlock()
	for _, c := range trainer.calls {
		if bytes.Equal(harness.HashesOf(&c).Digest(), want) {
			return
		}
	}
	t.Fatalf("%s did not arrive", body)
}
