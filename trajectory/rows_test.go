package trajectory_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

var update = flag.Bool("update", false, "write the outputs of testdata/rows again")

// vector is a file of testdata/rows. Everything from Calls on is output.
type vector struct {
	About   string             `json:"about"`
	Options trajectory.Options `json:"options"`
	Result  *schema.Result     `json:"result"` // null: no result is known
	Lines   []json.RawMessage  `json:"lines"`

	Calls    []*trajectory.Call   `json:"calls"`
	Tokens   trajectory.Tokens    `json:"tokens"`
	Rows     []*trajectory.Row    `json:"rows"`
	Breaks   []trajectory.Break   `json:"breaks"`
	Findings []trajectory.Finding `json:"findings"`
}

// fill makes the outputs, without texts for people.
func (v *vector) fill(t *testing.T) {
	t.Helper()
	var lines []any
	for _, l := range v.Lines {
		lines = append(lines, []byte(l))
	}
	r, err := trajectory.Read(bytes.NewReader(pack(t, lines...)), v.Result, v.Options)
	if err != nil {
		t.Fatal(err)
	}
	v.Calls, v.Tokens, v.Breaks, v.Findings = r.Calls, r.Tokens, r.Breaks, r.Findings
	v.Rows = slices.AppendSeq([]*trajectory.Row{}, r.Rows())
	for i := range v.Breaks {
		v.Breaks[i].Text = ""
	}
	for i := range v.Findings {
		v.Findings[i].Text = ""
	}
}

// encode writes the vector with one element of a list per line.
func (v *vector) encode(t *testing.T, result json.RawMessage) []byte {
	t.Helper()
	one := func(value any) string {
		var out bytes.Buffer
		e := json.NewEncoder(&out)
		e.SetEscapeHTML(false)
		if err := e.Encode(value); err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(out.String())
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "{\n  \"about\": %s,\n  \"options\": %s,\n  \"result\": %s", one(v.About), one(v.Options), one(result))
	list := func(name string, n int, at func(int) any) {
		fmt.Fprintf(&b, ",\n  %q: [", name)
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString("\n    " + one(at(i)))
		}
		if n > 0 {
			b.WriteString("\n  ")
		}
		b.WriteByte(']')
	}
	list("lines", len(v.Lines), func(i int) any { return v.Lines[i] })
	list("calls", len(v.Calls), func(i int) any { return v.Calls[i] })
	fmt.Fprintf(&b, ",\n  \"tokens\": %s", one(v.Tokens))
	list("rows", len(v.Rows), func(i int) any { return v.Rows[i] })
	list("breaks", len(v.Breaks), func(i int) any { return v.Breaks[i] })
	list("findings", len(v.Findings), func(i int) any { return v.Findings[i] })
	b.WriteString("\n}\n")
	return b.Bytes()
}

func TestGoldenRows(t *testing.T) {
	files, err := filepath.Glob("testdata/rows/*.json")
	if err != nil || len(files) < 49 {
		t.Fatalf("found %d vectors, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var v vector
			var raw struct{ Result json.RawMessage }
			if err := json.Unmarshal(want, &v); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(want, &raw); err != nil {
				t.Fatal(err)
			}
			v.fill(t)
			checkRows(t, &v)
			got := v.encode(t, raw.Result)
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			} else if !bytes.Equal(got, want) {
				t.Errorf("the output differs; see the difference with -update and git diff:\n%s", got)
			}
		})
	}
}

// checkRows checks every row against the ids of the transcript: the last call's
// prompt and answer are the row's tokens, masks are on answers of their calls
// alone, no answer is trained twice, and the counts of tokens are right.
func checkRows(t *testing.T, v *vector) {
	t.Helper()
	replies := map[int]*schema.Reply{}
	for _, raw := range v.Lines {
		var l schema.TranscriptLine
		if json.Unmarshal(raw, &l) == nil && l.Reply != nil && replies[l.Call] == nil {
			replies[l.Call] = l.Reply
		}
	}
	trained := map[int]int{}
	all := 0
	for n, w := range v.Rows {
		size := len(w.InputIDs)
		if w.Row != n || len(w.LossMask) != size || len(w.Logprobs) != size || len(w.Versions) != size || size == 0 {
			t.Fatalf("row %d has %d ids, %d masks, %d log-probs, %d versions", w.Row, size, len(w.LossMask), len(w.Logprobs), len(w.Versions))
		}
		last := replies[w.Calls[len(w.Calls)-1].Call]
		if whole := append(last.PromptIDs.Unpack(), last.CompletionIDs.Unpack()...); !slices.Equal(whole, w.InputIDs) {
			t.Errorf("row %d has the tokens %v and its last call %v", n, w.InputIDs, whole)
		}
		mask := make([]int8, size)
		for _, s := range w.Calls {
			if !s.Trained {
				continue
			}
			r := replies[s.Call]
			length := s.End - s.Start
			if trained[s.Call] > 0 || length == 0 {
				t.Errorf("row %d trains %d tokens of call %d, and %d were trained before", n, length, s.Call, trained[s.Call])
			}
			trained[s.Call] = length
			all += length
			if ids := r.CompletionIDs.Unpack(); length > len(ids) || !slices.Equal(ids[:length], w.InputIDs[s.Start:s.End]) {
				t.Errorf("row %d: call %d has other tokens than in the transcript", n, s.Call)
			}
			if p := r.Logprobs.Unpack(); len(p) > 0 && !slices.Equal(p[:length], w.Logprobs[s.Start:s.End]) {
				t.Errorf("row %d: call %d has other log-probs than in the transcript", n, s.Call)
			}
			for i := s.Start; i < s.End; i++ {
				mask[i] = 1
			}
		}
		if !slices.Equal(mask, w.LossMask) {
			t.Errorf("row %d: the mask is %v, the trained answers are at %v", n, w.LossMask, mask)
		}
		for i, m := range mask {
			if m == 0 && (w.Logprobs[i] != 0 || w.Versions[i] != -1) {
				t.Errorf("row %d: the context at %d has log-prob %g and version %d", n, i, w.Logprobs[i], w.Versions[i])
			}
		}
	}
	for _, c := range v.Calls {
		if c.TrainedOn != trained[c.Number] || c.Trained != (c.TrainedOn > 0) {
			t.Errorf("rows train %d tokens of call %d: %+v", trained[c.Number], c.Number, c)
		}
	}
	rest := v.Tokens.Sampled - v.Tokens.Trained
	for _, u := range v.Tokens.Untrained {
		rest -= u.Tokens
	}
	if v.Tokens.Trained != all || rest != 0 {
		t.Errorf("%v; rows train %d, and %d of the others have no reason", v.Tokens, all, rest)
	}
}
