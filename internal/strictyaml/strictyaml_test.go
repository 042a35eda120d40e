package strictyaml

import (
	"reflect"
	"strings"
	"testing"
)

type price struct {
	Input float64 `yaml:"input"`
}

type server struct {
	URL   string            `yaml:"url"`
	Max   int               `yaml:"max_tokens"`
	Plain bool              `yaml:"plain"`
	Names []string          `yaml:"names"`
	Price *price            `yaml:"price"`
	Any   any               `yaml:"any"`
	More  map[string]string `yaml:"more"`
	Short int
	own   int
}

func TestDecode(t *testing.T) {
	var got map[string]server
	text := "a: &x\n  url: u\n  max_tokens: 3\n  plain: true\n  names: [1, b]\n  price: {input: 2}\n  any: [{}]\n  more: {k: v}\n  short: 4\nb: *x\nc: ~\n"
	if err := Decode([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	want := server{URL: "u", Max: 3, Plain: true, Names: []string{"1", "b"}, Price: &price{2}, Any: []any{map[string]any{}}, More: map[string]string{"k": "v"}, Short: 4}
	if !reflect.DeepEqual(got["a"], want) || !reflect.DeepEqual(got["b"], want) || len(got) != 3 {
		t.Errorf("got %+v", got)
	}
	if err := Decode(nil, &got); err != nil {
		t.Errorf("of an empty file: %v", err)
	}
}

// TestErrors names the line, the field and a valid form, and no type of this program.
func TestErrors(t *testing.T) {
	for text, want := range map[string]string{
		"a:\n  url: u\n  fake: 1\n": "line 3: a.fake is no field: want url, max_tokens, plain, names, price, any, more, short",
		"a:\n  own: 1\n":            "line 2: a.own is no field",
		"a:\n  max_tokens: many\n":  `line 2: a.max_tokens: "many" is not valid: want a whole number`,
		"a:\n  max_tokens: 1.5\n":   "want a whole number",
		"a:\n  url: [x]\n":          "line 2: a.url: a list is not valid: want a text",
		"a:\n  plain: maybe\n":      "want true or false",
		"a:\n  names: x\n":          "want a list",
		"a:\n  names: [{}]\n":       "a.names[0]: a value with fields is not valid: want a text",
		"a:\n  price: 3\n":          `a.price: "3" is not valid: want fields with values`,
		"a:\n  price: {inptu: 3}\n": "a.price.inptu is no field: want input",
		"a:\n  more: {k: [v]}\n":    "a.more.k: a list is not valid",
		"- a\n":                     "line 1: the file: a list is not valid: want fields with values",
		"a: x\n":                    `line 1: a: "x" is not valid`,
		"a: [":                      "line 2",
		"<<: {url: U}\n":            `line 1: <<.url: "U" is not valid: want fields with values`,
		"a: {<<: [{names: x}]}\n":   `a.<<.names: "x" is not valid: want a list`,
		"a: &a {<<: *a}\n":          "want at most 3 << inside each other",
	} {
		var v map[string]server
		err := Decode([]byte(text), &v)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "strictyaml.") {
			t.Errorf("%q: %v", text, err)
		}
	}
	_ = server{}.own
}

func TestFieldsAreMerged(t *testing.T) {
	var v map[string]server
	if err := Decode([]byte("a: &a {url: u}\nb: {<<: *a, names: [x]}\nc: {<<: [*a, {names: [y]}]}\n"), &v); err != nil || v["b"].URL != "u" || v["b"].Names[0] != "x" || v["c"].URL != "u" || v["c"].Names[0] != "y" {
		t.Errorf("%+v, %v", v, err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("a:\n  url: u\n  names: [x]\n")
	f.Add("a: &a [*a]")
	f.Add("a: {<<: {url: x}}")
	f.Add("<<: {url: U}")
	f.Fuzz(func(t *testing.T, text string) {
		var v map[string]server
		if err := Decode([]byte(text), &v); err != nil && strings.Contains(err.Error(), "strictyaml.server") {
			t.Error(err)
		}
	})
}
