package sandboxes_test

import (
	"maps"
	"testing"

	"github.com/turngate/turngate/sandboxes"
)

func TestEnvironment(t *testing.T) {
	image := map[string]string{"NO_PROXY": "registry.internal, .corp", "A": "1"}
	place := map[string]string{"NO_PROXY": "localhost,web", "no_proxy": "localhost,web", "A": "2"}
	agent := map[string]string{"NO_PROXY": "127.0.0.1,localhost", "B": "3"}
	for name, tt := range map[string]struct {
		layers []map[string]string
		want   map[string]string
	}{
		"nothing": {nil, map[string]string{}},
		"one":     {[]map[string]string{agent}, map[string]string{"NO_PROXY": "127.0.0.1,localhost", "B": "3"}},
		"all": {[]map[string]string{image, place, agent}, map[string]string{
			"A": "2", "B": "3", "NO_PROXY": "registry.internal,.corp,localhost,web,127.0.0.1", "no_proxy": "registry.internal,.corp,localhost,web,127.0.0.1",
		}},
		"an empty list": {[]map[string]string{{"NO_PROXY": ""}}, map[string]string{"NO_PROXY": ""}},
	} {
		if got := sandboxes.Environment(tt.layers...); !maps.Equal(got, tt.want) {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
	if len(image) != 2 || image["NO_PROXY"] != "registry.internal, .corp" {
		t.Errorf("a layer was changed: %q", image)
	}
}
