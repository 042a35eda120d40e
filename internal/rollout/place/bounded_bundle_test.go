package place

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

type packed struct{ count int }

func (*packed) Has(string) bool { return true }

func (p *packed) Tar(string) (*io.SectionReader, error) {
	p.count++
	return io.NewSectionReader(bytes.NewReader(make([]byte, 600)), 0, 600), nil
}

func TestABundleIsBoundedAndPackedOnce(t *testing.T) {
	bundle := &packed{}
	b := &boundedBundle{bundle: bundle, tars: map[string]*io.SectionReader{}, left: 1000}
	for range 10 {
		if data, err := b.Tar("a"); err != nil || data.Size() != 600 {
			t.Fatal(data, err)
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
