package line

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/turngate/turngate/internal/harness"
)

// TestVectorsOfMessages: a message of the vectors has these bytes in both directions.
func TestVectorsOfMessages(t *testing.T) {
	data, err := os.ReadFile("../../schema/testdata/lines.json")
	harness.Must(t, err)
	var vectors struct {
		Messages []struct {
			Kind             string
			Seq, Ack, Credit uint64
			Data, Bytes      string
		}
	}
	harness.Must(t, json.Unmarshal(data, &vectors))
	if len(vectors.Messages) < 5 {
		t.Fatalf("%d messages", len(vectors.Messages))
	}
	for _, v := range vectors.Messages {
		body, err := hex.DecodeString(v.Data)
		harness.Must(t, err)
		f := Frame{Kind: Kind(v.Kind[0]), Seq: v.Seq, Ack: v.Ack, Credit: v.Credit, Data: body}
		if got := hex.EncodeToString(f.Encode()); got != v.Bytes {
			t.Errorf("%+v: got %s", v, got)
		}
		raw, err := hex.DecodeString(v.Bytes)
		harness.Must(t, err)
		got, err := Decode(raw)
		if err != nil || got.Kind != f.Kind || got.Seq != f.Seq || got.Ack != f.Ack || got.Credit != f.Credit || !bytes.Equal(got.Data, f.Data) {
			t.Errorf("%+v: read %+v, %v", v, got, err)
		}
	}
}
