package queue

import (
	"maps"
	"testing"

	"github.com/turngate/turngate/schema"
)

// TestAClassThatIsMadeWhileAPoolIsReadIsKept: the list of the server may be older,
// and a pool that is not read again does not have the class.
func TestAClassThatIsMadeWhileAPoolIsReadIsKept(t *testing.T) {
	t.Parallel()
	old, gone, made := class{1, "old"}, class{1, "gone"}, class{1, "made"}
	of := func(all ...class) *pool {
		p := &pool{classes: map[class]schema.Needs{}}
		for _, c := range all {
			p.classes[c] = schema.Needs{Agent: c.name}
		}
		return p
	}
	before := of(old, gone)
	for name, c := range map[string]struct{ read, now, before, want *pool }{
		"read again":     {of(old), of(old, gone, made), before, of(old, made)},
		"not read again": {before, of(old, gone, made), before, of(old, gone, made)},
		"nothing made":   {of(old), before, before, of(old)},
		"a new trainer":  {of(old), of(made), nil, of(old, made)},
		"a first round":  {of(old), nil, nil, of(old)},
	} {
		if got := c.read.with(c.now, c.before); !maps.EqualFunc(got.classes, c.want.classes, func(a, b schema.Needs) bool { return a.Agent == b.Agent }) {
			t.Errorf("%s: got %v, want %v", name, got.classes, c.want.classes)
		}
	}
	if len(before.classes) != 2 {
		t.Errorf("the pool before became %v", before.classes)
	}
}
