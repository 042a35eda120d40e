package sandboxes_test

import (
	"testing"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// TestShares divides limits among a main container and side-cars.
func TestShares(t *testing.T) {
	for name, c := range map[string]struct {
		total, first, second       int64 // memory
		main, wantFirst, wantOther int64
		noted                      bool
	}{
		"no limit":                  {0, 5, 0, 0, 5, 0, false},
		"named":                     {100, 30, 20, 50, 30, 20, false},
		"one unnamed":               {100, 40, 0, 30, 40, 30, false},
		"none named":                {100, 0, 0, 50, 25, 25, false},
		"more than all is reduced":  {100, 300, 100, 50, 37, 12, true},
		"all of it is reduced, too": {100, 100, 0, 25, 50, 25, true},
	} {
		t.Run(name, func(t *testing.T) {
			noted := false
			s := sandboxes.Spec{MemoryBytes: c.total, Note: func(limit, _ string) { noted = noted || limit == schema.LimitMemory }}
			s.Services = []sandboxes.Service{{Name: "a", Spec: sandboxes.Spec{MemoryBytes: c.first}}, {Name: "b", Spec: sandboxes.Spec{MemoryBytes: c.second}}}
			got, err := s.Shares()
			if err != nil {
				t.Fatal(err)
			}
			a, b := got.Services[0].Spec.MemoryBytes, got.Services[1].Spec.MemoryBytes
			if a != c.wantFirst || b != c.wantOther || noted != c.noted || got.MemoryBytes < c.main || c.total > 0 && got.MemoryBytes+a+b > c.total {
				t.Errorf("main %d, side-cars %d and %d, noted %v", got.MemoryBytes, a, b, noted)
			}
		})
	}
	s := sandboxes.Spec{DiskBytes: 100, Pids: 90, Services: []sandboxes.Service{{Name: "a"}, {Name: "b", Spec: sandboxes.Spec{Pids: 30}}}}
	got, err := s.Shares()
	if a, b := got.Services[0].Spec, got.Services[1].Spec; err != nil || got.DiskBytes+a.DiskBytes+b.DiskBytes != 100 || a.DiskBytes != 25 || got.Pids+a.Pids+b.Pids != 90 || b.Pids != 30 {
		t.Errorf("disk and processes: %+v, %v", got, err)
	}
	strict := sandboxes.Spec{MemoryBytes: 100, Strict: []string{schema.LimitMemory}, Services: []sandboxes.Service{{Name: "a", Spec: sandboxes.Spec{MemoryBytes: 200}}}}
	if _, err := strict.Shares(); err == nil {
		t.Error("a strict limit was weakened")
	}
}
