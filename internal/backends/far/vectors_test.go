package far

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/turngate/turngate/internal/harness"
)

// TestVectorsOfOrders: the order of the vectors is one that Serve takes, and Serve gives the
// answers of the vectors.
func TestVectorsOfOrders(t *testing.T) {
	data, err := os.ReadFile("../../../schema/testdata/lines.json")
	harness.Must(t, err)
	var v struct{ Order, Answer, Refusal string }
	harness.Must(t, json.Unmarshal(data, &v))
	var out bytes.Buffer
	s := &server{in: bufio.NewReader(strings.NewReader(v.Order)), out: &out}
	o, err := s.next()
	harness.Must(t, err)
	c := o.Create
	if c == nil || c.check() != nil || c.Owner != "admin" || c.Rollout != "exec-0a1b2c3d" || c.Attempt != 1 || c.User != "nobody" || c.Env["A"] != "b" || c.Ready != time.Minute || c.Life != time.Hour {
		t.Errorf("%s: read %+v", v.Order, c)
	}
	secret := make([]byte, 32)
	for i := range secret {
		secret[i] = byte(i)
	}
	for want, a := range map[string]answer{v.Answer: {Secret: secret, Workdir: "/workspace"}, v.Refusal: {Error: "the disk is full"}} {
		out.Reset()
		harness.Must(t, s.answer(a))
		if out.String() != want {
			t.Errorf("got %s, want %s", &out, want)
		}
	}
}
