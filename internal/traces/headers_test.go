package traces_test

import (
	"maps"
	"net/http"
	"net/textproto"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/traces"
)

const valid = "00-0102030405060708090a0b0c0d0e0f10-0102030405060708-01"

func TestHeaders(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in    map[string][]string
		valid bool
		out   map[string][]string
	}{
		"none":            {map[string][]string{"other": {"x"}}, false, map[string][]string{}},
		"valid":           {map[string][]string{"traceparent": {valid}, "tracestate": {"a=b"}}, true, map[string][]string{"traceparent": {valid}, "tracestate": {"a=b"}}},
		"other case":      {map[string][]string{"Traceparent": {valid}}, false, map[string][]string{}},
		"two":             {map[string][]string{"traceparent": {valid, "x"}}, true, map[string][]string{"traceparent": {valid}}},
		"later version":   {map[string][]string{"traceparent": {"01" + valid[2:] + "-more"}}, true, map[string][]string{"traceparent": {valid}}},
		"no text":         {map[string][]string{"traceparent": {""}}, false, map[string][]string{}},
		"zero":            {map[string][]string{"traceparent": {"00-00000000000000000000000000000000-0102030405060708-01"}}, false, map[string][]string{}},
		"a control":       {map[string][]string{"traceparent": {valid + "\x1b[31m"}}, false, map[string][]string{}},
		"huge":            {map[string][]string{"traceparent": {strings.Repeat("0", 1<<20)}}, false, map[string][]string{}},
		"huge, later":     {map[string][]string{"traceparent": {"01" + valid[2:] + "-" + strings.Repeat("0", 1<<20)}}, true, map[string][]string{"traceparent": {valid}}},
		"long tracestate": {map[string][]string{"traceparent": {valid}, "tracestate": {"a=" + strings.Repeat("b", 256) + ",c=" + strings.Repeat("d", 256)}}, true, map[string][]string{"traceparent": {valid}}},
		"bad tracestate":  {map[string][]string{"traceparent": {valid}, "tracestate": {"\x00"}}, true, map[string][]string{"traceparent": {valid}}},
	} {
		sc := traces.Of(c.in)
		h := http.Header{}
		for name, values := range c.in {
			for _, v := range values {
				if textproto.CanonicalMIMEHeaderKey(name) != name { // else it is another one in NATS alone
					h.Add(name, v)
				}
			}
		}
		if of := traces.OfHTTP(h); !of.Equal(sc) {
			t.Errorf("%s: of HTTP %v, want %v", name, of, sc)
		}
		out := map[string][]string{}
		traces.Put(out, sc)
		if sc.IsValid() != c.valid || !maps.EqualFunc(out, c.out, func(a, b []string) bool { return strings.Join(a, "|") == strings.Join(b, "|") }) {
			t.Errorf("%s: %v, passed on as %q", name, sc.IsValid(), out)
		}
	}
}

func FuzzHeaders(f *testing.F) {
	f.Add(valid, "a=b")
	f.Add(valid+"-x", strings.Repeat("a=b,", 40))
	f.Fuzz(func(t *testing.T, parent, state string) {
		sc := traces.Of(map[string][]string{"traceparent": {parent}, "tracestate": {state}})
		out := map[string][]string{}
		traces.Put(out, sc)
		size := 0
		for name, v := range out {
			size += len(name) + len(v[0])
		}
		again := traces.Of(out)
		if size > 700 || sc.IsValid() != (len(out) > 0) || sc.IsValid() && !again.Equal(sc.WithRemote(true)) {
			t.Fatalf("%v became %v", sc, again)
		}
	})
}
