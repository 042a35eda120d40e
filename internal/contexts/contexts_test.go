package contexts

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func open(t *testing.T) (*Store, string) {
	t.Helper()
	home := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", home)
	s, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	return s, home
}

func TestContexts(t *testing.T) {
	s, home := open(t)
	lab := Context{Name: "lab", URL: "nats://lab:4222", Creds: "/keys/ops.nk", Description: "the lab", Inbox: "_INBOX.ops.ops"}
	file := Context{Name: "file", URL: "nats://file", Creds: "/keys/me.creds"}
	for _, c := range []Context{lab, file} {
		if err := s.Add(c, nil); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Get(c.Name); err != nil || got != c {
			t.Errorf("got %+v, %v", got, err)
		}
		if info, err := os.Stat(filepath.Join(home, "nats", "context", c.Name+".json")); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", c.Name, info, err)
		}
	}
	if data, err := os.ReadFile(filepath.Join(home, "nats", "context", "file.json")); err != nil || !strings.Contains(string(data), `"creds": "/keys/me.creds"`) {
		t.Errorf("%s, %v", data, err)
	}
	if err := s.Add(lab, nil); !errors.Is(err, ErrExists) {
		t.Errorf("a second one: %v", err)
	}
	lab.URL = "nats://lab:4333"
	if err := s.Add(lab, func(old Context) bool { return old.Creds == lab.Creds }); err != nil {
		t.Error(err)
	}
	if got, err := s.Get("lab"); err != nil || got != lab {
		t.Errorf("replaced: %+v, %v", got, err)
	}
	if names := s.Names(); !slices.Equal(names, []string{"file", "lab"}) {
		t.Errorf("names are %v", names)
	}
	for _, name := range []string{"", "lab", ""} {
		if err := s.Use(name); err != nil {
			t.Error(err)
		}
		if got, err := s.Current(); err != nil || got != name {
			t.Errorf("current is %q, %v", got, err)
		}
	}
	if err := s.Use("lab"); err != nil {
		t.Error(err)
	}
	if err := s.Remove("lab"); err != nil {
		t.Error(err)
	}
	if got, err := s.Current(); err != nil || got != "" {
		t.Errorf("current is %q, %v", got, err)
	}
	for _, err := range []error{s.Use("lab"), s.Remove("lab"), s.Remove("../lab")} {
		if err == nil {
			t.Error("a context that is not there has no error")
		}
	}
}

// TestContextsThatCannotBeUsed are refused with the field or the name.
func TestContextsThatCannotBeUsed(t *testing.T) {
	s, home := open(t)
	folder := filepath.Join(home, "nats", "context")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	for text, says := range map[string]string{
		"": "want a JSON object", "{": "want a JSON object", "[]": "want a JSON object", `{"url": 1}`: "are strings", `{"creds": "x"}`: "want url",
		`{"url": "nats://x", "creds": "a", "nkey": "b"}`:                      "one of creds and nkey",
		`{"url": "nats://x", "user": "me", "password": "s3cret"}`:             "password, user",
		`{"url": "nats://x", "user_seed": "SU", "tls_first": true}`:           "tls_first, user_seed",
		`{"url": "nats://x", "nkey": "` + strings.Repeat("x", maxFile) + `"}`: "at most",
	} {
		if err := os.WriteFile(filepath.Join(folder, "bad.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Get("bad"); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%.60s: %v", text, err)
		}
	}
	if _, err := s.Get("good"); err == nil || !strings.Contains(err.Error(), "contexts are: bad") {
		t.Errorf("%v", err)
	}
	for _, name := range []string{"", ".", "..", "a/b", "a b", "\x1b[2J", strings.Repeat("x", maxName+1)} {
		if err := s.Add(Context{Name: name, URL: "nats://x"}, nil); err == nil {
			t.Errorf("%q is accepted", name)
		}
	}
}
