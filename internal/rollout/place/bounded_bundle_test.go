package place

import (
	"strings"
	"testing"
)

type packed struct{ count int }

func (*packed) Has(string) bool { return true }

func (p *packed) Tar(string) ([]byte, error) {
	p.count++
	return make([]byte, 600), nil
}

func TestABundleIsBoundedAndPackedOnce(t *testing.T) {
	bundle := &packed{}
	b := &boundedBundle{bundle: bundle, tars: map[string][]byte{}, left: 1000}
	for range 10 {
		if data, err := b.Tar("a"); err != nil || len(data) != 600 {
			t.Fatal(len(data), err)
		}
	}
	if bundle.count != 1 {
		t.Errorf("packed %d times", bundle.count)
	}
	if err := b.take(400); err != nil {
		t.Error(err)
	}
	if _, err := b.Tar("b"); err == nil || !strings.Contains(err.Error(), "sandbox:") {
		t.Errorf("over the bound: %v", err)
	}
}
