package upstreamtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Exchange is a request to an engine and its answer.
type Exchange struct {
	Method  string          `json:"method"`
	Path    string          `json:"path"`
	Request json.RawMessage `json:"request,omitempty"` // long texts are shortened
	Status  int             `json:"status"`
	Type    string          `json:"type"` // content type of the answer
	Body    string          `json:"body"`
}

// Tape is the connection of one case to an engine: either to a real one, and
// its answers are compared with the recording, or to the recording itself.
type Tape struct {
	t    testing.TB
	file string
	live http.RoundTripper // nil: the recording answers

	mu       sync.Mutex
	recorded []Exchange
	seen     []Exchange
}

// Replay returns a Tape that answers from a recording.
func Replay(t testing.TB, file string) *Tape {
	tape := &Tape{t: t, file: file}
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &tape.recorded)
	}
	if err != nil {
		t.Fatalf("read the recording: %v", err)
	}
	return tape
}

// Live returns a Tape to a real engine. At the end of the case its answers must
// have the form of the recording; with update they replace the recording.
func Live(t testing.TB, file string, update bool) *Tape {
	tape := &Tape{t: t, file: file, live: http.DefaultTransport}
	if !update {
		tape.recorded = Replay(t, file).recorded
	}
	t.Cleanup(func() {
		if update {
			tape.write()
		} else {
			tape.compare()
		}
	})
	return tape
}

// RoundTrip implements http.RoundTripper.
func (p *Tape) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		var err error
		if body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	e := Exchange{Method: r.Method, Path: r.URL.Path, Request: short(body)}
	if p.live == nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		n := len(p.seen)
		if n >= len(p.recorded) {
			p.t.Errorf("request %d is not recorded: %s %s %s", n+1, e.Method, e.Path, e.Request)
			return nil, fmt.Errorf("request %d is not recorded", n+1)
		}
		recorded := p.recorded[n]
		if recorded.Method != e.Method || recorded.Path != e.Path || !sameJSON(recorded.Request, e.Request) {
			p.t.Errorf("request %d is %s %s %s, recorded is %s", n+1, e.Method, e.Path, e.Request, recorded.Request)
		}
		p.seen = append(p.seen, recorded)
		return &http.Response{
			StatusCode: recorded.Status, Status: fmt.Sprintf("%d %s", recorded.Status, http.StatusText(recorded.Status)),
			Header: http.Header{"Content-Type": {recorded.Type}}, Body: io.NopCloser(strings.NewReader(recorded.Body)), Request: r,
		}, nil
	}
	out := r.Clone(r.Context())
	out.Body = io.NopCloser(bytes.NewReader(body))
	res, err := p.live.RoundTrip(out)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	e.Status, e.Type, e.Body = res.StatusCode, res.Header.Get("Content-Type"), string(data)
	p.mu.Lock()
	p.seen = append(p.seen, e)
	p.mu.Unlock()
	res.Body = io.NopCloser(bytes.NewReader(data))
	return res, nil
}

// Asked returns the number of requested completions, answered or not.
func (p *Tape) Asked() int { return len(p.completions()) }

// Answers returns the bodies of the completions, in order.
func (p *Tape) Answers() []string {
	var all []string
	for _, e := range p.completions() {
		all = append(all, e.Body)
	}
	return all
}

func (p *Tape) completions() []Exchange {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Exchange
	for _, e := range p.seen {
		if e.Method == http.MethodPost {
			all = append(all, e)
		}
	}
	return all
}

// write replaces the recording. The folder of the model is of the machine that
// records, and is left out.
func (p *Tape) write() {
	folder := regexp.MustCompile(`"root":"[^"]*/`)
	for i := range p.seen {
		p.seen[i].Body = folder.ReplaceAllString(p.seen[i].Body, `"root":"`)
	}
	data, err := json.MarshalIndent(p.seen, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(p.file), 0o755)
	}
	if err == nil {
		err = os.WriteFile(p.file, append(data, '\n'), 0o644)
	}
	if err != nil {
		p.t.Errorf("write the recording: %v", err)
	}
}

// compare reports the differences between the recording and the engine's
// answers.
func (p *Tape) compare() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.seen) != len(p.recorded) {
		p.t.Errorf("%s is no longer true: %d requests were made, %d are recorded", p.file, len(p.seen), len(p.recorded))
		return
	}
	for i, e := range p.seen {
		recorded := p.recorded[i]
		if !sameJSON(e.Request, recorded.Request) {
			p.t.Errorf("%s: request %d is %s, recorded is %s", p.file, i+1, e.Request, recorded.Request)
		}
		if e.Status != recorded.Status || e.Type != recorded.Type {
			p.t.Errorf("%s is no longer true: answer %d is %d %s, recorded is %d %s", p.file, i+1, e.Status, e.Type, recorded.Status, recorded.Type)
			continue
		}
		if e.Status != http.StatusOK {
			if e.Body != recorded.Body {
				p.t.Errorf("%s is no longer true: answer %d is\n%s\nrecorded is\n%s", p.file, i+1, e.Body, recorded.Body)
			}
			continue
		}
		if got, want := form(e.Body), form(recorded.Body); !slices.Equal(got, want) {
			p.t.Errorf("%s is no longer true: answer %d has the members %q, recorded are %q", p.file, i+1, got, want)
		}
	}
}

// form lists the members of an answer, or of all chunks of a stream, by path.
// It leaves out the parts that a model says by chance.
func form(body string) []string {
	paths := map[string]bool{}
	if !strings.HasPrefix(body, "data:") {
		collect(body, paths)
	}
	for _, line := range strings.Split(body, "\n") {
		if data, ok := strings.CutPrefix(line, "data: "); ok && data == "[DONE]" {
			paths[data] = true
		} else if ok {
			collect(data, paths)
		}
	}
	var all []string
	for path := range paths {
		if !strings.Contains(path, "tool_calls[]") && !strings.Contains(path, "top_logprobs[]") {
			all = append(all, path)
		}
	}
	slices.Sort(all)
	return all
}

func collect(text string, paths map[string]bool) {
	var value any
	if json.Unmarshal([]byte(text), &value) != nil {
		paths["no JSON: "+text] = true
		return
	}
	walk("", value, paths)
}

func walk(at string, value any, paths map[string]bool) {
	switch v := value.(type) {
	case map[string]any:
		for name, member := range v {
			walk(at+"."+name, member, paths)
		}
	case []any:
		for _, item := range v {
			walk(at+"[]", item, paths)
		}
	default:
		paths[at] = true
	}
}

// short returns a request in the form of recordings, in which long texts are
// shortened.
func short(body []byte) json.RawMessage {
	if len(body) == 0 {
		return nil
	}
	var value any
	if json.Unmarshal(body, &value) != nil {
		return json.RawMessage(`"no JSON"`)
	}
	data, err := json.Marshal(shorten(value))
	if err != nil {
		return json.RawMessage(`"no JSON"`)
	}
	return data
}

func shorten(value any) any {
	switch v := value.(type) {
	case string:
		if len(v) > 300 {
			return fmt.Sprintf("%s… (%d bytes)", v[:20], len(v))
		}
	case map[string]any:
		for name, member := range v {
			v[name] = shorten(member)
		}
	case []any:
		for i, item := range v {
			v[i] = shorten(item)
		}
	}
	return value
}

func sameJSON(a, b json.RawMessage) bool {
	var x, y bytes.Buffer
	if len(a) == 0 || len(b) == 0 {
		return len(a) == len(b)
	}
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}
