package schema_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

func TestUnknownKeysAreIgnored(t *testing.T) {
	// {"v":1,"ids":["alpha-1"],"later":{"x":[1,2]}}
	data := append([]byte{0x83, 0xa1, 'v', 1, 0xa3, 'i', 'd', 's', 0x91, 0xa7}, "alpha-1"...)
	data = append(data, 0xa5, 'l', 'a', 't', 'e', 'r', 0x81, 0xa1, 'x', 0x92, 1, 2)
	var c schema.Cancel
	harness.Must(t, schema.Decode(data, &c))
	if len(c.IDs) != 1 || c.IDs[0] != "alpha-1" {
		t.Fatalf("got %+v", c)
	}
}

func TestMalformedInputIsRefused(t *testing.T) {
	deep := append([]byte{0x81, 0xa1, 'x'}, bytes.Repeat([]byte{0x91}, 1<<20)...)
	for name, data := range map[string][]byte{
		"empty":         {},
		"not a map":     {0x92, 1, 2},
		"cut off":       {0x81, 0xa2, 'i'},
		"nested":        append(deep, 1),
		"huge array":    {0x81, 0xa1, 'x', 0xdd, 0xff, 0xff, 0xff, 0xff},
		"huge string":   {0x81, 0xa1, 'x', 0xdb, 0x7f, 0xff, 0xff, 0xff},
		"trailing":      {0x80, 0x01},
		"reserved byte": {0x81, 0xa1, 'x', 0xc1},
		"text":          []byte("{\"id\":\"alpha-1\"}"),
		"wrong type":    {0x81, 0xa3, 'i', 'd', 's', 0x07},
	} {
		t.Run(name, func(t *testing.T) {
			var shape *schema.ShapeError
			if err := schema.Decode(data, &schema.Cancel{}); !errors.As(err, &shape) {
				t.Fatalf("got %v, want a ShapeError", err)
			}
		})
	}
}

func TestWorkingDirectoriesThatAreRefused(t *testing.T) {
	for _, dir := range []string{"relative", "../up", "/a/../b", "/a//b", "/a/", "/proc/self/fd/3", "/proc", "/sys/fs/cgroup", "/dev/shm", "/.turngate", "/\xff\xfe", "/a\x00b", "/" + strings.Repeat("x", 5000)} {
		r := sampleRequest()
		r.Sandbox.Workdir = dir
		var bad *schema.InvalidError
		if err := schema.Validate(&r); !errors.As(err, &bad) || bad.Field != "sandbox.workdir" {
			t.Errorf("%.20q: %v", dir, err)
		}
	}
	r := sampleRequest()
	for _, dir := range []string{"/", "/processes", "/developer/x"} {
		if r.Sandbox.Workdir = dir; schema.Validate(&r) != nil {
			t.Errorf("%q: %v", dir, schema.Validate(&r))
		}
	}
}

func TestValidationNamesTheField(t *testing.T) {
	for field, spoil := range map[string]func(*schema.Request){
		"id":                   func(r *schema.Request) { r.ID = "beta-1" },
		"trainer":              func(r *schema.Request) { r.Trainer = "requests" },
		"mode":                 func(r *schema.Request) { r.Mode = "open_bar" },
		"shard":                func(r *schema.Request) { r.Shard = "a.b" },
		"process":              func(r *schema.Request) { r.Process = "a.b" },
		"task.name":            func(r *schema.Request) { r.Task.Name = "" },
		"task.bundle":          func(r *schema.Request) { r.Task.Bundle = "../etc/passwd" },
		"agent.name":           func(r *schema.Request) { r.Agent.Name = "a b" },
		"agent.env":            func(r *schema.Request) { r.Agent.Env = map[string]string{"A=B": "x"} },
		"sandbox.backend":      func(r *schema.Request) { r.Sandbox.Backend = "" },
		"sandbox.network":      func(r *schema.Request) { r.Sandbox.Network = "host" },
		"sandbox.workdir":      func(r *schema.Request) { r.Sandbox.Workdir = "/app/../etc" },
		"sandbox.image":        func(r *schema.Request) { r.Sandbox.Image = "--privileged" },
		"sandbox.memory_bytes": func(r *schema.Request) { r.Sandbox.MemoryBytes = -1 },
		"limits.agent_ms":      func(r *schema.Request) { r.Limits.AgentMS = -5 },
		"gate.max_parallel":    func(r *schema.Request) { r.Gate.MaxParallel = 1000 },
		"setup[0].run":         func(r *schema.Request) { r.Setup[0].Run = " " },
		"verify.user":          func(r *schema.Request) { r.Verify.User = "$(id)" },
		"agent.user":           func(r *schema.Request) { r.Agent.User = "4294967295" }, // "no change" in a system call
		"sandbox.user":         func(r *schema.Request) { r.Sandbox.User = "agent:" },
		"setup[0].user":        func(r *schema.Request) { r.Setup[0].User = ":agent" },
		"artifacts[0].source":  func(r *schema.Request) { r.Artifacts = []schema.ArtifactRule{{Source: "../../etc/passwd"}} },
		"max_attempts":         func(r *schema.Request) { r.MaxAttempts = -1 },
		"model.sampling":       func(r *schema.Request) { r.Model.Sampling = raw("{") },
	} {
		t.Run(field, func(t *testing.T) {
			r := samples()["request"].(*schema.Request)
			spoil(r)
			_, err := schema.Encode(r)
			var bad *schema.InvalidError
			if !errors.As(err, &bad) || bad.Field != field {
				t.Fatalf("got %v, want an InvalidError for %s", err, field)
			}
		})
	}
}

func TestReplyLengthsMustMatch(t *testing.T) {
	r := samples()["reply"].(*schema.Reply)
	r.Logprobs = schema.PackLogprobs([]float32{-1})
	if err := schema.Validate(r); err == nil || !strings.Contains(err.Error(), "logprobs") {
		t.Fatalf("got %v", err)
	}
}

func TestNewIDHashesForeignSuffixes(t *testing.T) {
	for _, suffix := range []string{"ok-1", "a.b", "x y", strings.Repeat("z", 200), "$(touch x)"} {
		id, err := schema.NewID("alpha", suffix)
		harness.Must(t, err)
		if _, err := schema.ParseID(string(id)); err != nil {
			t.Errorf("%q: %v", suffix, err)
		}
		if again, _ := schema.NewID("alpha", suffix); again != id {
			t.Errorf("%q gave two ids", suffix)
		}
	}
	if _, err := schema.NewID("requests", "1"); err == nil {
		t.Error("a reserved trainer was accepted")
	}
}

func TestKeyRoundTrip(t *testing.T) {
	k := schema.Key{Rollout: "alpha-7", Attempt: 2, Call: 31}
	got, err := schema.ParseKey(k.String())
	if err != nil || got != k {
		t.Fatalf("got %v, %v", got, err)
	}
	for _, bad := range []string{"", "alpha-7/2", "alpha-7/0/1", "alpha-7/01/1", "alpha-7/+1/1", "a/1/1", "alpha-7/1/1/1"} {
		if _, err := schema.ParseKey(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestPackedArraysRoundTrip(t *testing.T) {
	ids := []int32{0, -1, 2147483647}
	if got := schema.PackTokenIDs(ids).Unpack(); !reflect.DeepEqual(got, ids) {
		t.Errorf("got %v", got)
	}
	if got := schema.PackLogprobs([]float32{-0.5, 0}).Unpack(); !reflect.DeepEqual(got, []float32{-0.5, 0}) {
		t.Errorf("got %v", got)
	}
}

func TestRequestDefaults(t *testing.T) {
	r := schema.Request{ID: "alpha-1", Trainer: "alpha"}.WithDefaults()
	if r.Limits.AgentMS != 900_000 || r.Gate.WaitMS != 1_800_000 || r.MaxAttempts != 3 || r.Mode != schema.ModeGate || r.Sandbox.Network != "none" {
		t.Fatalf("got %+v", r)
	}
	if r.LifeMS() != 15_000+240_000+300_000+900_000+600_000+300_000 {
		t.Fatalf("got %d", r.LifeMS())
	}
}

// FuzzDecode feeds foreign bytes to every message. It checks that Decode does
// not panic, and that a decoded message survives encoding and decoding.
func FuzzDecode(f *testing.F) {
	for _, m := range samples() {
		data, err := schema.Encode(m)
		harness.Must(f, err)
		f.Add(data)
	}
	kinds := []func() schema.Message{
		func() schema.Message { return &schema.Request{} }, func() schema.Message { return &schema.Call{} },
		func() schema.Message { return &schema.Reply{} }, func() schema.Message { return &schema.Delta{} },
		func() schema.Message { return &schema.Result{} }, func() schema.Message { return &schema.Event{} },
		func() schema.Message { return &schema.Fault{} }, func() schema.Message { return &schema.Cancel{} },
		func() schema.Message { return &schema.State{} }, func() schema.Message { return &schema.Hint{} }, func() schema.Message { return &schema.Presence{} }, func() schema.Message { return &schema.Control{} },
		func() schema.Message { return &schema.Machine{} }, func() schema.Message { return &schema.LineOpen{} }, func() schema.Message { return &schema.LineEnd{} },
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, kind := range kinds {
			m := kind()
			if schema.Decode(data, m) != nil {
				continue
			}
			again, err := schema.Encode(m)
			if err != nil {
				t.Fatalf("%T decoded but does not encode: %v", m, err)
			}
			back := kind()
			if err := schema.Decode(again, back); err != nil {
				t.Fatalf("%T does not decode again: %v", m, err)
			}
			if twice, _ := schema.Encode(back); !bytes.Equal(again, twice) {
				t.Fatalf("%T is not stable", m)
			}
		}
	})
}

// BenchmarkCodec has the calls of a growing conversation and an answer with the
// ids of its whole prompt.
func BenchmarkCodec(b *testing.B) {
	ids := schema.PackTokenIDs(make([]int32, 8000))
	for name, m := range map[string]schema.Message{
		"call/2KB": bigCall(2), "call/32KB": bigCall(32), "call/256KB": bigCall(256),
		"reply/64KB": &schema.Reply{
			V: 1, Message: json.RawMessage(`{"role":"assistant","content":"ok"}`), FinishReason: "stop",
			PromptIDs: ids, CompletionIDs: ids, Logprobs: schema.Logprobs(ids), Versions: []schema.VersionSpan{{Version: "p-1", End: 8000}},
		},
	} {
		data, err := schema.Encode(m)
		harness.Must(b, err)
		b.Run(name+"/encode", func(b *testing.B) {
			for b.Loop() {
				if _, err := schema.Encode(m); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/decode", func(b *testing.B) {
			for b.Loop() {
				if err := schema.Decode(data, reflect.New(reflect.TypeOf(m).Elem()).Interface().(schema.Message)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func bigCall(kilobytes int) *schema.Call {
	c := &schema.Call{V: 1, Key: "alpha-7/2/3", Tag: schema.TagAgent, Dialect: "chat"}
	for range kilobytes {
		c.Messages = append(c.Messages, json.RawMessage(`{"role":"user","content":"`+strings.Repeat("x", 1000)+`"}`))
	}
	return c
}
