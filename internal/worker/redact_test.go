package worker

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/rs/zerolog"

	"github.com/turngate/turngate/internal/gate"
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

// TestNoKeyLeavesARollout puts the keys of two sessions into each text of each
// value that leaves a rollout: events, transcript, deltas, files and the result.
func TestNoKeyLeavesARollout(t *testing.T) {
	const first, second = "tg-0123456789abcdef", "tg-fedcba9876543210"
	var mu sync.Mutex // the recorder has a goroutine of its own
	var left [][]byte // all that left
	keep := func(data []byte) {
		mu.Lock()
		defer mu.Unlock()
		left = append(left, data)
	}
	leave := func(v any) {
		data, err := json.Marshal(v)
		if err != nil {
			t.Error(err)
		}
		keep(data)
	}
	r := &Rollout{Request: schema.Request{ID: "alpha-1"}, Attempt: 1, Log: zerolog.Nop()}
	r.Services = Services{Emit: func(e *schema.Event) { leave(e) }, Live: func(_ schema.ID, _, _ int, d *schema.Delta) { leave(d) }}
	c := newRecorder(r)
	r.rec = c
	c.secrets.add(first)
	c.secrets.add(second)
	for _, key := range []string{first, second} {
		event, call, delta := filled[schema.Event](key), filled[schema.Call](key), filled[schema.Delta](key)
		before := mustJSON(t, &event)
		c.emit(&event)
		if event.Index == 0 || !strings.Contains(before, key) || !strings.Contains(mustJSON(t, event.LLM), key) {
			t.Error("the event has no key, or was changed for its other users")
		}
		c.CallBegan(1, &call)
		c.CallDelta(1, &delta)
		c.CallWaits(filled[schema.WaitEvent](key))
		c.CallEnded(1, filled[gate.CallEnd](key))
		c.CallEnded(2, gate.CallEnd{Fault: &schema.Fault{Message: key, AgentMessage: key}})
		c.ToolEnded(filled[gate.ToolEnd](key))
		c.ToolEnded(gate.ToolEnd{Fault: &schema.Fault{Message: key, AgentMessage: key}})
		log := c.agentLog(io.Discard)
		_, _ = io.WriteString(log.out, "out "+key+"\n")
		_, _ = io.WriteString(log.err, "err "+key)
		log.finish()
		keep([]byte(c.why(log)))
		leave(hide(&c.secrets, filled[schema.Result](key)))
		file := []byte("x" + key + "y" + key)
		if masked := c.secrets.file(file); len(masked) != len(file) {
			t.Error("a file has another length")
		} else {
			keep(masked)
		}
	}
	data, _ := c.transcript()
	z, err := zstd.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	for lines := bufio.NewScanner(z); lines.Scan(); {
		keep(bytes.Clone(lines.Bytes()))
	}
	mu.Lock()
	defer mu.Unlock()
	if len(left) < 30 {
		t.Errorf("only %d texts left", len(left))
	}
	for _, text := range left {
		if bytes.Contains(text, []byte(first)) || bytes.Contains(text, []byte(second)) {
			t.Errorf("a key left: %.400s", text)
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
	s.add("key-0001")
	s.add("")
	if hide(&s, reply) != reply {
		t.Error("a value without keys was copied")
	}
	var wrapped any = map[string]any{"a": []any{"key-0001", errors.New("x")}}
	if got := hide(&s, wrapped); !strings.Contains(mustJSON(t, got), masked) || !strings.Contains(mustJSON(t, wrapped), "key-0001") {
		t.Errorf("got %v of %v", got, wrapped)
	}
}
