package schema_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/schema"
)

func TestMessagesAreReadable(t *testing.T) {
	r := harness.Request("alpha-1")
	r.V, r.Labels = schema.Version, map[string]string{"suite": "x"}
	data, err := schema.Encode(&r)
	harness.Must(t, err)
	text, err := schema.Readable(data)
	harness.Must(t, err)
	var back map[string]any
	if err := json.Unmarshal(text, &back); err != nil || back["id"] != "alpha-1" || !strings.Contains(string(text), `"suite": "x"`) {
		t.Errorf("got %s, %v", text, err)
	}
	// {1: <ff fe>, "f": NaN, "b": bin "{}"}
	text, err = schema.Readable([]byte("\x83\x01\xc4\x02\xff\xfe\xa1f\xcb\x7f\xf8\x00\x00\x00\x00\x00\x01\xa1b\xc4\x02{}"))
	if want := `{"1":"//4=","b":"{}","f":"NaN"}`; err != nil || strings.Join(strings.Fields(string(text)), "") != want {
		t.Errorf("got %s, %v", text, err)
	}
	for _, bad := range []string{"", "garbage", "\x81", "\x93\x01\x02\x03"} {
		if text, err := schema.Readable([]byte(bad)); err == nil {
			t.Errorf("%q: got %s", bad, text)
		}
	}
}

func FuzzReadable(f *testing.F) {
	f.Add([]byte("\x81\xa1a\x01"))
	f.Add([]byte("\x82\x01\xc4\x02\xff\xfe\x81\xa1k\xc0\xd6\xff\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		text, err := schema.Readable(data)
		if (err == nil) != json.Valid(text) {
			t.Errorf("got %q, %v", text, err)
		}
	})
}
