package upstream

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

// TestThePauseGrowsWithTheOutage: an outage of 150 s takes few tries, and an answer ends
// it.
func TestThePauseGrowsWithTheOutage(t *testing.T) {
	t.Parallel()
	var o outage
	start := time.Unix(1000, 0)
	tries, last := 0, time.Duration(0)
	for at := time.Duration(0); at < 150*time.Second; tries++ {
		pause := o.goesOn(start.Add(at))
		if o.answered() || pause < last || pause > mostPause {
			t.Fatalf("after %s: a pause of %s after one of %s", at, pause, last)
		}
		last = pause
		at += max(pause, 2*time.Second) // the worker waits for about 2 s at least
	}
	if tries > 25 {
		t.Errorf("%d tries", tries)
	}
	o.over()
	if pause := o.goesOn(start.Add(time.Hour)); !o.answered() || pause != 0 {
		t.Errorf("after an answer: a pause of %s", pause)
	}
}

// TestARefusalIsNoOutage: only failures of an upstream that answers no call make the next
// pause longer.
func TestARefusalIsNoOutage(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		status int
		body   string
		outage bool
	}{
		"a wrong request":    {400, `{"error":{"message":"temperature must be at most 2"}}`, false},
		"a long prompt":      {400, `{"error":{"message":"the prompt is longer than the model's context length"}}`, false},
		"a wrong start":      {400, `{"error":{"message":"\"auto\" tool choice requires --enable-auto-tool-choice"}}`, false},
		"a wrong key":        {401, `{"error":"Unauthorized"}`, false},
		"another model":      {404, `{"error":{"message":"no such model","param":"model"}}`, false},
		"a large request":    {413, "too large", false},
		"not implemented":    {501, "no", false},
		"an odd answer":      {200, `{"choices":[]}`, false},
		"overload":           {429, "busy", true},
		"an engine's crash":  {500, "EngineDeadError", true},
		"a proxy alone":      {502, "bad gateway", true},
		"a start":            {503, "loading", true},
		"a proxy that waits": {504, "timeout", true},
		"an overload":        {529, "overloaded", true},
		"no connection":      {0, "", true},
	} {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(tt.status)
			_, _ = io.WriteString(w, tt.body)
		}))
		if tt.status == 0 {
			srv.Close()
		}
		u, err := New(Config{URL: srv.URL, Model: "m", Plain: true})
		harness.Must(t, err)
		faultOf(t, u, &schema.Call{Key: "alpha-1/1/1", Messages: []json.RawMessage{json.RawMessage(`{"role":"user","content":"hi"}`)}}, nil)
		if counts := !u.outage.since.IsZero(); counts != tt.outage {
			t.Errorf("%s: it counts as an outage: %t", name, counts)
		}
		srv.Close()
	}
}

// TestAServerOfAnotherKind: an answer in another form is a bad answer, streamed or not,
// unless the server has answered a call before.
func TestAServerOfAnotherKind(t *testing.T) {
	t.Parallel()
	const fine = `{"choices":[{"message":{"role":"assistant","content":"a"},"finish_reason":"stop"}]}`
	answer := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	for name, tt := range map[string]struct {
		other http.HandlerFunc
		bad   bool // a bad answer
		waits bool // after an answer, no bad answer
	}{
		"HTML":                     {answer(200, "<html>Welcome</html>"), true, false},
		"JSON of another form":     {answer(200, `{"object":"response","output":[]}`), true, false},
		"no such route":            {answer(404, `{"detail":"Not Found"}`), true, true},
		"no such route, HTML":      {answer(404, "<html>404</html>"), true, true},
		"no such model":            {answer(404, "{\"message\":\"The model `m` does not exist.\",\"param\":\"model\"}"), false, true},
		"a wrong key":              {answer(401, `{"error":"Unauthorized"}`), false, true},
		"a server of static files": {answer(501, "Unsupported method ('POST')"), true, true},
		"another method":           {answer(405, "Method Not Allowed"), true, false},
		"a server that is busy":    {answer(503, "busy"), false, true},
	} {
		for _, model := range []string{"", "m"} {
			for _, stream := range []bool{false, true} {
				var works bool
				srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					switch {
					case !works:
						tt.other(w, r)
					case r.Method == http.MethodGet:
						_, _ = io.WriteString(w, `{"data":[{"id":"m"}]}`)
					default:
						_, _ = io.WriteString(w, fine)
					}
				}))
				u, err := New(Config{URL: srv.URL, Model: model, Plain: true})
				harness.Must(t, err)
				call := &schema.Call{Key: "alpha-1/1/1", Messages: []json.RawMessage{json.RawMessage(`{"role":"user","content":"hi"}`)}}
				var emit func(*schema.Delta) error
				if stream {
					emit = func(*schema.Delta) error { return nil }
				}
				f := faultOf(t, u, call, emit)
				if (f.Code == schema.CodeBadAnswer) != tt.bad || !schema.RetryableStatus(f.Status) {
					t.Errorf("%s, model %q, stream %t: %+v", name, model, stream, f)
				}
				works = true
				if _, err := u.Answer(t.Context(), call, nil); err != nil {
					t.Errorf("%s: after it: %v", name, err)
				}
				works = false
				u.served.forget()
				if f := faultOf(t, u, call, emit); tt.waits && f.Code == schema.CodeBadAnswer {
					t.Errorf("%s, model %q, stream %t, after an answer: %+v", name, model, stream, f)
				}
				srv.Close()
			}
		}
	}
}

// TestAServerWithoutHTTP: a server that speaks another protocol is one of another kind.
func TestAServerWithoutHTTP(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	harness.Must(t, err)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			// net/http takes bytes before the request for the end of the connection.
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, "INFO {\"server_id\":\"x\"}\r\n")
			_ = c.Close()
		}
	}()
	u, err := New(Config{URL: "http://" + l.Addr().String(), Name: "lab"})
	harness.Must(t, err)
	f := faultOf(t, u, &schema.Call{Key: "alpha-1/1/1"}, nil)
	if f.Code != schema.CodeBadAnswer || !strings.HasPrefix(f.Message, "upstream lab: ") {
		t.Errorf("%+v", f)
	}
}

func faultOf(t *testing.T, u *Upstream, c *schema.Call, emit func(*schema.Delta) error) *schema.Fault {
	t.Helper()
	_, err := u.Answer(t.Context(), c, emit)
	var f *schema.Fault
	if !errors.As(err, &f) {
		t.Fatalf("no fault: %v", err)
	}
	return f
}
