package trajectory_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

// addVectors adds the transcripts of testdata/rows to the seeds.
func addVectors(f *testing.F) {
	files, err := filepath.Glob("testdata/rows/*.json")
	if err != nil || len(files) == 0 {
		f.Fatalf("no vectors: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		var v vector
		if err := json.Unmarshal(data, &v); err != nil {
			f.Fatal(err)
		}
		var all []byte
		for _, l := range v.Lines {
			all = append(append(all, l...), '\n')
		}
		f.Add(all)
	}
}

func FuzzRows(f *testing.F) {
	addVectors(f)
	f.Add([]byte(`{"call":1,"request":{"base":0,"keep":0,"messages":[null]}}` + "\n" + `{"call":1,"reply":{"prompt_ids":[1],"completion_ids":[-2],"logprobs":[null,1],"versions":[{"start":-5,"end":9}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, merge := range []string{trajectory.MergeRealign, trajectory.MergeClean, trajectory.MergeFork} {
			v := vector{Options: trajectory.Options{Merge: merge, MaxLost: 3, WithoutLogprobs: true}}
			r, err := trajectory.Read(bytes.NewReader(pack(t, data)), nil, v.Options)
			if err != nil {
				return
			}
			v.Calls, v.Tokens = r.Calls, r.Tokens
			for w := range r.Rows() {
				if _, err := json.Marshal(w); err != nil {
					t.Fatal(err)
				}
				v.Rows = append(v.Rows, w)
			}
			for _, l := range bytes.Split(data, []byte("\n")) {
				v.Lines = append(v.Lines, l)
			}
			checkRows(t, &v)
		}
	})
}

// Lines are read as encoding/json reads them.
func FuzzLine(f *testing.F) {
	addVectors(f)
	f.Add([]byte(`{"at":1,"call":1,"request":{"messages":[{"a":[1,2.5e3]},null],"params":{"x":null},"tools":[],"stream":true,"base":1,"base":2}}`))
	f.Add([]byte(`{"reply":{"message":null,"prompt_ids":[ 1,2],"completion_ids":[-1,2147483647],"logprobs":[-1e-3,null],"usage":{}},"Call":3,"ms":-0}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if bytes.ContainsAny(data, "\n") {
			return
		}
		var want schema.TranscriptLine
		wrong := json.Unmarshal(data, &want)
		err := trajectory.Each(bytes.NewReader(pack(t, data)), func(l *schema.TranscriptLine) error {
			if wrong != nil {
				t.Errorf("a line was read that encoding/json refuses: %v", wrong)
			}
			a, err := json.Marshal(l)
			if err != nil {
				t.Fatal(err)
			}
			b, err := json.Marshal(&want)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(a, b) {
				t.Errorf("read as\n%s\nwant\n%s", a, b)
			}
			return nil
		})
		if wrong == nil && err != nil {
			t.Error(err)
		}
	})
}
