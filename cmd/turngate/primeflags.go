package main

import (
	"cmp"
	"errors"
	"os"

	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/backends/prime"
	"github.com/turngate/turngate/sandboxes"
)

// primeFlags are the settings of the backend prime.
type primeFlags struct {
	prime                                 string
	primeCPUs, primeMemoryGB, primeDiskGB float64
	primeSandboxes, primePerMinute        int
}

func (f *primeFlags) add(fl *pflag.FlagSet, prefix string) {
	fl.StringVar(&f.prime, "prime", "", prefix+"image of the prime sandbox, such as debian:bookworm; PRIME_API_KEY or PRIME_API_KEY_FILE has the key")
	fl.Float64Var(&f.primeCPUs, "prime-cpus", 2, prefix+"processors of a prime sandbox")
	fl.Float64Var(&f.primeMemoryGB, "prime-memory-gb", 4, prefix+"memory of a prime sandbox")
	fl.Float64Var(&f.primeDiskGB, "prime-disk-gb", 10, prefix+"disk of a prime sandbox")
	fl.IntVar(&f.primeSandboxes, "prime-sandboxes", 0, prefix+"most prime sandboxes of this process at once (0: any)")
	fl.IntVar(&f.primePerMinute, "prime-per-minute", 0, prefix+"most prime sandboxes that this process makes in a minute (0: any)")
}

// check returns all errors in these flags.
func (f *primeFlags) check() error {
	s := f.unread()
	if s.Image == "" {
		s = sandboxes.Prime{} // the environment may be for other programs
	}
	return errors.Join(atLeast("prime-sandboxes", f.primeSandboxes, 0), atLeast("prime-per-minute", f.primePerMinute, 0), flagOf("prime", prime.CheckSettings(s)))
}

// unread returns the settings without the key.
func (f *primeFlags) unread() sandboxes.Prime {
	return sandboxes.Prime{
		Image: f.prime, CPUs: f.primeCPUs, MemoryGB: f.primeMemoryGB, DiskGB: f.primeDiskGB, Sandboxes: f.primeSandboxes, PerMinute: f.primePerMinute,
		APIURL: cmp.Or(os.Getenv("PRIME_API_BASE_URL"), os.Getenv("PRIME_BASE_URL")), Team: os.Getenv("PRIME_TEAM_ID"),
	}
}

// settings returns the settings of these flags and of the environment, with the names that
// Prime's own client uses.
func (f *primeFlags) settings() (sandboxes.Prime, error) {
	if f.prime == "" {
		return sandboxes.Prime{}, nil
	}
	s := f.unread()
	var err error
	s.Key, err = serviceKey("Prime Intellect", "PRIME_API_KEY")
	return s, err
}
