package box

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

type vectors struct {
	Proof struct {
		Secret, Worker, Box string
		WorkerNonce         string `json:"worker_nonce"`
		BoxNonce            string `json:"box_nonce"`
	}
	Frames []struct {
		Kind, Text, Data, Bytes string
	}
}

func readVectors(t *testing.T) (v vectors) {
	t.Helper()
	data, err := os.ReadFile("../../schema/testdata/lines.json")
	harness.Must(t, err)
	harness.Must(t, json.Unmarshal(data, &v))
	return v
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	harness.Must(t, err)
	return b
}

func TestVectorsOfTheProof(t *testing.T) {
	p := readVectors(t).Proof
	for role, want := range map[string]string{roleWorker: p.Worker, roleBox: p.Box} {
		if got := hex.EncodeToString(proof(unhex(t, p.Secret), role, unhex(t, p.WorkerNonce), unhex(t, p.BoxNonce))); got != want {
			t.Errorf("%s: got %s, want %s", role, got, want)
		}
	}
}

// TestVectorsOfFrames: a frame of the vectors has these bytes in both directions, and JSON in
// it has the fields that the box knows, and no others.
func TestVectorsOfFrames(t *testing.T) {
	all := readVectors(t).Frames
	if len(all) < 10 {
		t.Fatalf("%d frames", len(all))
	}
	for _, v := range all {
		payload := []byte(v.Text)
		if v.Text == "" {
			payload = unhex(t, v.Data)
		}
		var out bytes.Buffer
		harness.Must(t, (&frameWriter{w: &out}).write(v.Kind[0], payload))
		if got := hex.EncodeToString(out.Bytes()); got != v.Bytes {
			t.Errorf("%+v: got %s", v, got)
		}
		kind, got, err := newFrameReader(bytes.NewReader(unhex(t, v.Bytes))).next()
		if err != nil || kind != v.Kind[0] || !bytes.Equal(got, payload) {
			t.Errorf("%+v: read %c %q, %v", v, kind, got, err)
		}
		var into any
		switch {
		case v.Text == "" || v.Text == "null":
			continue
		case v.Kind[0] == frameHeader:
			into = &header{}
		case v.Kind[0] == frameStarted:
			into = &started{}
		case v.Kind[0] == frameFail:
			into = &failure{}
		case v.Kind[0] == frameOK:
			into = &schema.Exit{}
		case v.Kind[0] == frameData:
			into = &[]sandboxes.FileInfo{}
		}
		d := json.NewDecoder(strings.NewReader(v.Text))
		d.DisallowUnknownFields()
		if err := d.Decode(into); err != nil {
			t.Errorf("%s: %v", v.Text, err)
			continue
		}
		again, err := json.Marshal(into)
		harness.Must(t, err)
		var want, have any
		harness.Must(t, json.Unmarshal([]byte(v.Text), &want))
		harness.Must(t, json.Unmarshal(again, &have))
		if !reflect.DeepEqual(have, want) {
			t.Errorf("%s: got %s", v.Text, again)
		}
	}
}
