package broker

import "testing"

func TestPatternsOfRights(t *testing.T) {
	for _, tt := range []struct {
		answer, pattern string
		want            bool
	}{
		{`{"data":{"user":"x"}}`, "a.b", true},
		{`{"data":{"permissions":{"publish":{"allow":["a.*"]}}}}`, "a.b", true},
		{`{"data":{"permissions":{"publish":{"allow":["a.*"]}}}}`, "a.*", true},
		{`{"data":{"permissions":{"publish":{"allow":["a.*"]}}}}`, "a.>", false},
		{`{"data":{"permissions":{"publish":{"allow":["a.b"]}}}}`, "a.*", false},
		{`{"data":{"permissions":{"publish":{"allow":["a.>"]}}}}`, "a", false},
		{`{"data":{"permissions":{"publish":{"allow":[">"],"deny":["a.b"]}}}}`, "a.*", false},
		{`{"data":{"permissions":{"publish":{"allow":[">"],"deny":["a.b"]}}}}`, "a.c", true},
		{`{"data":{"permissions":{"publish":{"deny":["a.>"]}}}}`, "b", true},
		{`{"data":{"permissions":{"publish":{"deny":["a.>"]}}}}`, "a.b.c", false},
		{`{"data":{"permissions":{"subscribe":{"allow":["a"]}}}}`, "b", true},
	} {
		r, err := rightsIn([]byte(tt.answer))
		if err != nil || r.May(tt.pattern) != tt.want {
			t.Errorf("%s: %s: got %v, %v", tt.answer, tt.pattern, r.May(tt.pattern), err)
		}
	}
	for _, bad := range []string{"", `{"error":{"description":"no"}}`} {
		if _, err := rightsIn([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
