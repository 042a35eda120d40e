package rawjson

import (
	"strings"
	"testing"
	"time"
)

func TestLoose(t *testing.T) {
	l := LooseOf([]byte(`{"o":{"a":"b"},"l":[1,"x"],"t":"text","n":-2.5,"c":7,"b":true,"z":"2026-11-26T04:49:13.868860Z","local":"2026-11-26T04:49:11.300413","null":null,"big":1e300}`))
	if l.Object("o").Text("a") != "b" || len(l.List("l")) != 2 || l.Text("t") != "text" || *l.Number("n") != -2.5 || l.Count("c") != 7 || !l.Bool("b") || l.Count("n") != 0 || l.Count("big") != 1<<53 {
		t.Errorf("got %s", l)
	}
	if at := l.Time("z"); !at.Equal(time.Date(2026, 11, 26, 4, 49, 13, 868860000, time.UTC)) {
		t.Errorf("got %v", at)
	}
	if at := l.Time("local"); !at.Equal(time.Date(2026, 11, 26, 4, 49, 11, 300413000, time.Local)) {
		t.Errorf("got %v", at)
	}
	for field := range l { // a field of another form has no value
		if field != "o" && l.Object(field) != nil && field != "null" || field != "l" && l.List(field) != nil {
			t.Errorf("%s was read in another form", field)
		}
	}
	for _, missing := range []string{"none", "null"} {
		if l.Has(missing) || l.Object(missing) != nil || l.List(missing) != nil || l.Text(missing) != "" || l.Number(missing) != nil || l.Count(missing) != 0 || l.Bool(missing) || !l.Time(missing).IsZero() {
			t.Errorf("%s has a value", missing)
		}
	}
	if LooseOf([]byte(`[1]`)) != nil || LooseOf([]byte(`{`)) != nil {
		t.Error("a value that is no object was read")
	}
}

// Small members need much memory, so their number is bounded.
func TestLooseIsBounded(t *testing.T) {
	list := `[` + strings.Repeat(`0,`, maxLoose-1) + `"a,\"b,",[1,2]`
	if LooseList([]byte(list+`]`)) != nil {
		t.Error("a long list was read")
	}
	if l := LooseList([]byte(`[` + strings.Repeat(`0,`, maxLoose-2) + `"a,\"b,",[1,2]]`)); len(l) != maxLoose {
		t.Errorf("got %d elements", len(l))
	}
	if _, err := ReadLoose([]byte(`{` + strings.Repeat(`"":0,`, maxLoose) + `"a":1}`)); err == nil {
		t.Error("an object with many fields was read")
	}
	if l := LooseOf([]byte(`{"a":1,"b":{},"c":null}`)).Only("c", "a", "d"); len(l) != 2 || l.Count("a") != 1 {
		t.Errorf("got %s", l)
	}
}
