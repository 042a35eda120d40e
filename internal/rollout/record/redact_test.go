package record

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/rs/zerolog"
	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/gate"
	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

// put writes a text into every field of a value that can hold text.
func put(v reflect.Value, text string, depth int) {
	switch v.Kind() {
	case reflect.String:
		v.SetString("a " + text + " b")
	case reflect.Pointer:
		if depth > 0 && v.CanSet() {
			v.Set(reflect.New(v.Type().Elem()))
			put(v.Elem(), text, depth-1)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				put(v.Field(i), text, depth)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes([]byte(`{"x":"a ` + text + ` b"}`))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		put(v.Index(1), text, depth-1)
	case reflect.Map:
		if depth > 0 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			put(key, text, depth-1)
			put(value, text, depth-1)
			v.Set(reflect.MakeMap(v.Type()))
			v.SetMapIndex(key, value)
		}
	}
}

func filled[T any](text string) (v T) {
	put(reflect.ValueOf(&v).Elem(), text, 6)
	return v
}

// TestNoKeyLeavesARecord puts the keys of two sessions, and the two halves of a key
// that was cut, into each kind of text.
func TestNoKeyLeavesARecord(t *testing.T) {
	const first, second, upstream = "tg-0123456789abcdefghijklmnopqrstuvwxyzABCDEF", "tg-fedcba98765432100123456789abcdef", "lab-key-1"
	left := &texts{}
	var log bytes.Buffer
	r := New(&schema.Request{ID: "alpha-1", Task: schema.Task{Notes: []string{"a note of the task with " + first}}}, 1, "w1", Exits{
		Emit: func(e *schema.Event) { left.value(t, e) }, Live: func(_ schema.ID, _, _ int, d *schema.Delta) { left.value(t, d) },
		Put: func(_ context.Context, name string, file broker.File) (schema.Artifact, error) {
			data, err := io.ReadAll(file.Open())
			left.add(name, string(data))
			return schema.Artifact{Name: name}, err
		},
		Log: zerolog.New(&log).With().Str("rollout", "alpha-1").Logger(),
	})
	keys := []string{first, second, upstream}
	for _, key := range keys {
		r.Secret(key)
	}
	for _, key := range append(keys, first[:24], first[20:]) {
		event, call, delta := filled[schema.Event](key), filled[schema.Call](key), filled[schema.Delta](key)
		before := mustJSON(t, &event)
		r.Events.Emit(&event)
		if event.Index == 0 || !strings.Contains(before, key) || !strings.Contains(mustJSON(t, event.LLM), key) {
			t.Error("the event has no key, or was changed for its other users")
		}
		r.Calls.CallBegan(1, &call)
		r.Calls.CallDelta(1, &delta)
		r.Calls.CallWaits(filled[schema.WaitEvent](key))
		r.Calls.CallEnded(1, filled[gate.CallEnd](key))
		r.Calls.CallEnded(2, gate.CallEnd{Fault: &schema.Fault{Message: key, AgentMessage: key}})
		r.Calls.ToolEnded(filled[gate.ToolEnd](key))
		r.Calls.ToolEnded(gate.ToolEnd{Fault: &schema.Fault{Message: key, AgentMessage: key}})
		p := r.Begin("agent " + key)
		streams := r.AgentLog(p, nil)
		_, _ = io.WriteString(streams.Stdout, "out "+key+"\n")
		_, _ = io.WriteString(streams.Stderr, "err "+key)
		streams.Finish()
		_, _ = io.WriteString(p.Output("stdout"), "command "+key+"\n")
		p.End(&schema.Fault{Message: key + streams.Why()})
		harness.Must(t, streams.Keep(t.Context(), r, func(name string) string { return name + key }))
		harness.Must(t, r.Keep(t.Context(), "more", Text([]byte("x"+key+"y"+key))))
		f := r.Files.New()
		_, _ = io.WriteString(f, strings.Repeat("before ", 20_000)+key+strings.Repeat(" after", 20_000))
		harness.Must(t, r.KeepFile(t.Context(), "much more", f))
		r.Note("a note with %s", key)
		r.Agent("1.0+" + key)
		step := filled[schema.StepResult](key)
		step.Separation = schema.SeparationSameUser
		r.Step(step)
		r.Metrics("step", map[string]float64{key: 1})
		r.Reward(nil, map[string]float64{key: 1})
		r.Spent(filled[map[string]schema.CallStats](key), filled[[]schema.Committed](key), []string{key})
		left.value(t, r.Result())
		r.Fail(&schema.Fault{Message: key, AgentMessage: key})
		left.value(t, r.Result())
		left.value(t, Masked(r, filled[schema.Verification](key)))
		left.value(t, Masked(r, filled[schema.OperationResult](key)))
		r.Log.Warn().Err(errors.New("it said "+key)).Str(key, key).Int("n", 7).Msg("a line with " + key)
		r.Log.Log().Msg(key)
	}
	z, err := zstd.NewReader(content(t, r.Calls.End().lines))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	for lines := bufio.NewScanner(z); lines.Scan(); {
		left.add(lines.Text())
	}
	left.add(log.String())
	if !strings.Contains(log.String(), `{"level":"warn","rollout":"alpha-1",`) || !strings.Contains(log.String(), `"n":7`) || !strings.Contains(log.String(), `"message":"a line with [key]`) {
		t.Errorf("the log is %s", log.String())
	}
	left.mu.Lock()
	defer left.mu.Unlock()
	if len(left.all) < 100 {
		t.Errorf("only %d texts left", len(left.all))
	}
	for _, text := range left.all {
		for _, key := range append(keys, first[:24], first[20:]) {
			if strings.Contains(text, key) {
				t.Errorf("a key left: %.400s", text)
			}
		}
	}
}

// texts collects the output of a record, which has a goroutine of its own.
type texts struct {
	mu  sync.Mutex
	all []string
}

func (l *texts) add(more ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, more...)
}

func (l *texts) value(t *testing.T, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		t.Error(err)
	}
	l.add(string(data))
}

// TestAnArchiveWithoutAKeyIsReadable: a key is in the names, in the link, in long names
// and in the content.
func TestAnArchiveWithoutAKeyIsReadable(t *testing.T) {
	const key = "tg-0123456789abcdefghijklmnopqrstuvwxyzABCDEF"
	long := strings.Repeat("folder/", 30) + key
	for _, format := range []tar.Format{tar.FormatPAX, tar.FormatGNU} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, name := range []string{"plain", key, "sub/" + key + "/x", long, "last"} {
			body := "before " + key + " after"
			if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(body)), Format: format, ModTime: time.Unix(1, 5)}); err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(w, body) // into memory
		}
		if err := errors.Join(w.WriteHeader(&tar.Header{Name: "link", Linkname: key, Typeflag: tar.TypeSymlink, Format: format}), w.Close()); err != nil {
			t.Fatal(err)
		}
		var s secrets
		s.Add(key)
		var names []string
		for r := tar.NewReader(s.file(Text(b.Bytes())).Open()); ; {
			h, err := r.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(format, names, err)
			}
			body, err := io.ReadAll(r)
			if err != nil || strings.Contains(h.Name+h.Linkname+string(body), key) {
				t.Errorf("%s: %s -> %s: %s, %v", format, h.Name, h.Linkname, body, err)
			}
			names = append(names, h.Name)
		}
		hidden := "[key]" + strings.Repeat("*", len(key)-5)
		if want := []string{"plain", hidden, "sub/" + hidden + "/x", strings.Repeat("folder/", 30) + hidden, "last", "link"}; !slices.Equal(names, want) {
			t.Errorf("%s: got %q", format, names)
		}
	}
}

// TestTextsThatAreNoKeys are not masked.
func TestTextsThatAreNoKeys(t *testing.T) {
	var s secrets
	s.Add("none")
	s.Add("sk-proj-0123456789abcdef")
	for _, text := range []string{"none", "sk-proj-", "sk-proj-0123456", "", "see sk-proj-… in the docs"} {
		if got := s.Text(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestHideCopiesOnlyChangedParts: token ids and texts without keys are shared.
func TestHideCopiesOnlyChangedParts(t *testing.T) {
	var s secrets
	reply := &schema.Reply{Message: json.RawMessage(`{}`), Usage: schema.Usage{PromptTokens: 1}}
	if hide(&s, reply) != reply {
		t.Error("a value was copied without a key")
	}
	s.Add("key-0001")
	s.Add("")
	if hide(&s, reply) != reply {
		t.Error("a value without keys was copied")
	}
	var wrapped any = map[string]any{"a": []any{"key-0001", errors.New("x")}}
	if got := hide(&s, wrapped); !strings.Contains(mustJSON(t, got), "[key]") || !strings.Contains(mustJSON(t, wrapped), "key-0001") {
		t.Errorf("got %v of %v", got, wrapped)
	}
}
