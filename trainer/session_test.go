package trainer_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/subjects"
	"github.com/turngate/turngate/trainer"
)

var update = flag.Bool("update", false, "write docs/session.md") //nolint:gochecknoglobals // a flag

// session records the messages of one rollout, with fixed values in place of
// random names and times.
type session struct {
	sub   *nats.Subscription
	text  bytes.Buffer
	named map[string]string // fixed values of random names
	seen  map[string]bool
}

const sessionHead = `# One rollout, byte by byte

These are the messages between a trainer and a worker in a rollout of two model calls, as they are on the wire: subject, reply subject, headers, body. The test ` + "`TestTheSessionIsDocumented`" + ` (` + "`go test ./trainer -run TestTheSession`" + `, ` + "`-update`" + ` writes this file)
runs the rollout with the real trainer and the worker's side of the protocol, without a sandbox, and compares each byte. Random names and times are replaced by fixed ones: the last token of the reply subject, the generations, the remaining milliseconds of a call. The header ` + "`Nats-Request-Info`" + `, which the server adds, and beats are left out.
[protocol.md](protocol.md) explains the messages, [messages.md](messages.md) has their fields.
`

// next waits for the next message on a subject that the session is about, and
// writes it down.
func (s *session) next(t *testing.T, title, subject string) {
	t.Helper()
	for {
		m, err := s.sub.NextMsg(20 * time.Second)
		if err != nil {
			t.Fatalf("%s: %v", title, err)
		}
		about := []string{"rollout.requests.", "rollout.alpha-1.llm.", "_INBOX.gate.", "trainer.alpha.results", subjects.Result("alpha-1")}
		delivered := strings.HasPrefix(m.Reply, "$JS.ACK.") // by the stream, to a worker
		if delivered || !slices.ContainsFunc(about, func(p string) bool { return strings.HasPrefix(m.Subject, p) }) {
			continue
		}
		kind := m.Header.Get(subjects.HeaderKind)
		once := strings.Join([]string{m.Subject, kind, m.Header.Get(subjects.HeaderSeq)}, " ")
		if s.seen[once] || kind == string(schema.FrameBeat) {
			continue // on a slow machine messages are repeated
		}
		s.seen[once] = true
		if !strings.HasPrefix(m.Subject, subject) {
			t.Fatalf("%s: got a message on %s", title, m.Subject)
		}
		s.write(t, title, m)
		return
	}
}

func (s *session) write(t *testing.T, title string, m *nats.Msg) {
	t.Helper()
	body := m.Data
	if strings.Contains(m.Subject, ".llm.") {
		var c schema.Call
		if err := schema.Decode(body, &c); err != nil {
			t.Fatal(err)
		}
		if again, err := schema.Encode(&c); err != nil || !bytes.Equal(again, body) {
			t.Fatalf("a call is not what package schema makes of it: %v", err)
		}
		c.RemainingMS = 1_800_000
		var err error
		if body, err = schema.Encode(&c); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprintf(&s.text, "\n## %s\n\n```\nsubject %s\n", title, s.fixed(m.Subject))
	if strings.HasPrefix(m.Reply, "_INBOX.gate.") {
		fmt.Fprintf(&s.text, "reply   %s\n", s.fixed(m.Reply))
	}
	for _, name := range slices.Sorted(maps.Keys(m.Header)) {
		value := m.Header.Get(name)
		switch name {
		case "Nats-Request-Info": // the server adds it
			continue
		case subjects.HeaderGen:
			value = s.name(value, "gen%d")
		}
		fmt.Fprintf(&s.text, "header  %s: %s\n", name, value)
	}
	if len(body) > 0 {
		fmt.Fprintf(&s.text, "body    %d bytes\n%s", len(body), hex.Dump(body))
	} else {
		s.text.WriteString("no body\n")
	}
	s.text.WriteString("```\n")
}

// fixed replaces the last token of a gate's inbox, which is random.
func (s *session) fixed(subject string) string {
	if !strings.HasPrefix(subject, "_INBOX.gate.") {
		return subject
	}
	at := strings.LastIndex(subject, ".") + 1
	return subject[:at] + s.name(subject[at:], "%032x")
}

// name returns the fixed name of a random one, numbered for each form.
func (s *session) name(random, form string) string {
	if s.named[random] == "" {
		n := 1
		for slices.Contains(slices.Collect(maps.Values(s.named)), fmt.Sprintf(form, n)) {
			n++
		}
		s.named[random] = fmt.Sprintf(form, n)
	}
	return s.named[random]
}

// TestTheSessionIsDocumented runs a small rollout and compares its messages with
// docs/session.md.
func TestTheSessionIsDocumented(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(c *trainer.Config) { c.State = filepath.Join(t.TempDir(), "state") }) // its requests do not name the process
	nc := b.connect(t)
	sub, err := nc.SubscribeSync(">")
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil { // before the first message
		t.Fatal(err)
	}
	s := &session{sub: sub, named: map[string]string{}, seen: map[string]bool{}}
	s.text.WriteString(sessionHead)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := b.trainer.Submit(ctx, []schema.Request{harness.Request("alpha-1")}); err != nil {
		t.Fatal(err)
	}
	s.next(t, "1. The trainer submits a request", "rollout.requests.")
	j, err := b.worker.Take(ctx)
	if err != nil {
		t.Fatal(err)
	}
	caller := b.calls.Caller(j.Request, j)
	ask := func(c schema.Call, n int) <-chan answer {
		c.V, c.Tag, c.Dialect, c.Digest = schema.Version, schema.TagAgent, "chat", harness.HashesOf(&c).Digest()
		c.Key = schema.Key{Rollout: "alpha-1", Attempt: j.Attempt, Call: n}.String()
		got := make(chan answer, 1)
		go func() {
			r, err := testenv.Complete(ctx, caller, c, func(schema.Frame) error { return nil })
			got <- answer{r, err}
		}()
		return got
	}
	const user, said1, more = `{"role":"user","content":"hi"}`, `{"role":"assistant","content":"Hello."}`, `{"role":"user","content":"more"}`
	reply := func(message string, ids ...int32) *schema.Reply {
		return &schema.Reply{Message: json.RawMessage(message), FinishReason: "stop", PromptIDs: schema.PackTokenIDs([]int32{1, 2}), CompletionIDs: schema.PackTokenIDs(ids), Logprobs: schema.PackLogprobs([]float32{-0.5, -0.25})}
	}
	got := ask(schema.Call{Messages: []json.RawMessage{json.RawMessage(user)}, Params: schema.SortedMap[json.RawMessage]{"temperature": json.RawMessage("1")}}, 1)
	s.next(t, "2. The worker asks: the first model call", "rollout.alpha-1.llm.")
	p := next(t, b.trainer)
	s.next(t, "3. The trainer accepts it", "_INBOX.gate.")
	if err := p.Stream().Delta(&schema.Delta{Delta: json.RawMessage(`{"content":"Hello."}`), CompletionIDs: schema.PackTokenIDs([]int32{3, 4}), Logprobs: schema.PackLogprobs([]float32{-0.5, -0.25})}); err != nil {
		t.Fatal(err)
	}
	s.next(t, "4. A delta", "_INBOX.gate.")
	if err := p.Reply(reply(said1, 3, 4)); err != nil {
		t.Fatal(err)
	}
	s.next(t, "5. The whole reply", "_INBOX.gate.")
	if a := <-got; a.err != nil {
		t.Fatal(a.err)
	}
	got = ask(schema.Call{
		Messages: []json.RawMessage{json.RawMessage(user), json.RawMessage(said1), json.RawMessage(more)}, Params: schema.SortedMap[json.RawMessage]{"temperature": json.RawMessage("1")},
		Shares: schema.Shares{Base: 1, Keep: 1, Tools: true, Params: true},
	}, 2)
	s.next(t, "6. The second model call, based on the first", "rollout.alpha-1.llm.")
	p = next(t, b.trainer)
	s.next(t, "7. The trainer accepts it", "_INBOX.gate.")
	if err := p.Reply(reply(`{"role":"assistant","content":"Bye."}`, 5, 6)); err != nil {
		t.Fatal(err)
	}
	s.next(t, "8. The whole reply", "_INBOX.gate.")
	if a := <-got; a.err != nil {
		t.Fatal(a.err)
	}
	reward := 1.0
	if err := j.Done(ctx, schema.Result{ID: "alpha-1", Trainer: "alpha", Attempt: j.Attempt, Status: schema.StatusDone, Reward: &reward}); err != nil {
		t.Fatal(err)
	}
	s.next(t, "9. The worker stores the result", subjects.Result("alpha-1"))
	s.next(t, "10. The hint of the result", "trainer.alpha.results")
	path := filepath.Join("..", "docs", "session.md")
	if *update {
		if err := os.WriteFile(path, s.text.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(want, s.text.Bytes()) {
		t.Errorf("%s is not what the session is; run go test ./trainer -run TestTheSession -update (%v)\n%s", path, err, s.text.Bytes())
	}
}
