package main

import (
	"errors"
	"os"

	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/backends/e2b"
	"github.com/turngate/turngate/sandboxes"
)

// e2bFlags bound the sandboxes of the backend e2b.
type e2bFlags struct {
	e2b                        string
	e2bSandboxes, e2bPerMinute int
}

func (f *e2bFlags) add(fl *pflag.FlagSet, prefix string) {
	fl.StringVar(&f.e2b, "e2b", "", prefix+"template of the e2b sandbox, such as base; E2B_API_KEY or E2B_API_KEY_FILE has the key")
	fl.IntVar(&f.e2bSandboxes, "e2b-sandboxes", 0, prefix+"most e2b sandboxes of this process at once (0: any)")
	fl.IntVar(&f.e2bPerMinute, "e2b-per-minute", 0, prefix+"most e2b sandboxes that this process makes in a minute (0: any)")
}

// check returns all errors in these flags.
func (f *e2bFlags) check() error {
	s := f.unread()
	if s.Template == "" {
		s = sandboxes.E2B{} // the environment may be for other programs
	}
	return errors.Join(atLeast("e2b-sandboxes", f.e2bSandboxes, 0), atLeast("e2b-per-minute", f.e2bPerMinute, 0), flagOf("e2b", e2b.CheckSettings(s)))
}

// unread returns the settings without the key.
func (f *e2bFlags) unread() sandboxes.E2B {
	return sandboxes.E2B{
		Template: f.e2b, Sandboxes: f.e2bSandboxes, PerMinute: f.e2bPerMinute,
		APIURL: os.Getenv("E2B_API_URL"), Domain: os.Getenv("E2B_DOMAIN"), SandboxURL: os.Getenv("E2B_SANDBOX_URL"),
	}
}

// settings returns the settings of these flags and of the environment, with the names that
// E2B's own clients use.
func (f *e2bFlags) settings() (sandboxes.E2B, error) {
	if f.e2b == "" {
		return sandboxes.E2B{}, nil
	}
	s := f.unread()
	var err error
	s.Key, err = serviceKey("E2B", "E2B_API_KEY")
	return s, err
}
