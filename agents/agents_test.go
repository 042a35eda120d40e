package agents_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/agents/agenttest"
)

func TestEveryAgent(t *testing.T) {
	all := agents.All()
	seen := map[string]bool{}
	for _, s := range all {
		if seen[s.Name] {
			t.Errorf("%s is there twice", s.Name)
		}
		seen[s.Name] = true
		t.Run(s.Name, func(t *testing.T) { agenttest.Run(t, s) })
	}
	if len(all) == 0 {
		t.Fatal("there are no agents")
	}
	if _, err := agents.Find(all, "nobody"); err == nil || !strings.Contains(err.Error(), "opencode") {
		t.Errorf("an unknown agent: %v", err)
	}
}

// Lines as the agents print them.
func TestEventsAreRead(t *testing.T) {
	for _, tt := range []struct{ agent, line, kind, text, tool, output string }{
		{"opencode", `{"type":"text","part":{"type":"text","text":"Done."}}`, "text", "Done.", "", ""},
		{"opencode", `{"type":"tool_use","part":{"tool":"bash","callID":"c1","state":{"status":"completed","input":{"command":"ls"},"output":"x"}}}`, "tool_result", "", "bash", "x"},
		{"opencode", `{"type":"error","error":{"name":"APIError","data":{"message":"no","statusCode":401}}}`, "error", "no", "", ""},
		{"opencode", `{"type":"step_finish","part":{"tokens":{"input":3,"output":4}}}`, "usage", "", "", ""},
		{"pi", `{"type":"message_end","message":{"role":"assistant","content":[{"type":"text","text":"Hi"}],"usage":{"input":1,"output":2},"stopReason":"stop"}}`, "text", "Hi", "", ""},
		{"pi", `{"type":"message_end","message":{"role":"assistant","content":[],"stopReason":"error","errorMessage":"401"}}`, "error", "401", "", ""},
		{"pi", `{"type":"tool_execution_start","toolCallId":"c","toolName":"bash","args":{"command":"ls"}}`, "tool_call", "", "bash", ""},
		{"pi", `{"type":"auto_retry_end","success":false,"attempt":3,"finalError":"gone"}`, "error", "gone", "", ""},
		{"mini", `{"kind":"tool_result","tool":"bash","output":"x"}`, "tool_result", "", "bash", "x"},
	} {
		s, err := agents.Find(agents.All(), tt.agent)
		if err != nil {
			t.Fatal(err)
		}
		e := s.ParseEvent([]byte(tt.line))
		if e == nil || e.Kind != tt.kind || e.Text != tt.text || e.Tool != tt.tool || e.Output != tt.output {
			t.Errorf("%s: %s: got %+v", tt.agent, tt.line, e)
		}
	}
}

func FuzzParseEvent(f *testing.F) {
	f.Add([]byte(`{"type":"message_end","message":{"content":[{"type":"text"}]}}`))
	f.Fuzz(func(_ *testing.T, line []byte) {
		for _, s := range agents.All() {
			if s.ParseEvent != nil {
				_ = s.ParseEvent(line)
			}
		}
	})
}

// fakeNPM puts an npm on the PATH that packs one archive; what it is asked for
// is in the file "asked".
func fakeNPM(t *testing.T, headers ...tar.Header) string {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, h := range headers {
		h.Typeflag, h.Size = tar.TypeReg, 1
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := "#!/bin/sh\necho \"$@\" >> " + dir + "/asked\nwhile [ \"$1\" != --pack-destination ]; do shift; done\ncp " + dir + "/archive \"$2/a.tgz\"\n"
	if err := errors.Join(os.WriteFile(dir+"/archive", b.Bytes(), 0o600), os.WriteFile(dir+"/npm", []byte(script), 0o700)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return dir
}

func TestInstallIsPinnedAndOnce(t *testing.T) {
	dir := fakeNPM(t, tar.Header{Name: "package/bin/opencode", Mode: 0o755}, tar.Header{Name: "package/package.json", Mode: 0o600})
	s, err := agents.Find(agents.All(), "opencode")
	if err != nil {
		t.Fatal(err)
	}
	cache := agents.Cache{Dir: t.TempDir()}
	for range 2 {
		var said bytes.Buffer
		if err := cache.Install(t.Context(), s, &said); err != nil {
			t.Fatal(err)
		}
	}
	asked, err := os.ReadFile(dir + "/asked")
	if err != nil || strings.Count(string(asked), "\n") != 1 || !strings.Contains(string(asked), "@"+s.Version) || !strings.Contains(string(asked), "--ignore-scripts") {
		t.Fatalf("npm was asked %q, %v", asked, err)
	}
	for name, mode := range map[string]os.FileMode{"opencode/bin/opencode": 0o755, "opencode/package.json": 0o644} {
		if info, err := os.Stat(filepath.Join(cache.Path(s), name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

func TestAnArchiveCannotLeaveTheCache(t *testing.T) {
	fakeNPM(t, tar.Header{Name: "package/../../../../outside", Mode: 0o644})
	s, err := agents.Find(agents.All(), "opencode")
	if err != nil {
		t.Fatal(err)
	}
	cache := agents.Cache{Dir: filepath.Join(t.TempDir(), "a", "b", "c")}
	if err := cache.Install(t.Context(), s, &bytes.Buffer{}); err == nil || cache.Installed(s) {
		t.Fatalf("it was installed: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(cache.Dir, "opencode", ".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}
