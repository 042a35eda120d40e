package main

import (
	"errors"

	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/backends/modal"
	"github.com/turngate/turngate/sandboxes"
)

// modalFlags are the settings of the backend modal. Modal's client takes the account from
// the environment or from its file.
type modalFlags struct {
	modal, modalApp                string
	modalSandboxes, modalPerMinute int
}

func (f *modalFlags) add(fl *pflag.FlagSet, prefix string) {
	fl.StringVar(&f.modal, "modal", "", prefix+"image of the modal sandbox's virtual machine, such as debian:bookworm; MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or the file of Modal's client, have the token")
	fl.StringVar(&f.modalApp, "modal-app", modal.DefaultApp, prefix+"app of Modal that has the modal sandboxes; it is made if it is not there")
	fl.IntVar(&f.modalSandboxes, "modal-sandboxes", 0, prefix+"most modal sandboxes of this process at once (0: any)")
	fl.IntVar(&f.modalPerMinute, "modal-per-minute", 0, prefix+"most modal sandboxes that this process makes in a minute (0: any)")
}

// check returns all errors in these flags.
func (f *modalFlags) check() error {
	return errors.Join(atLeast("modal-sandboxes", f.modalSandboxes, 0), atLeast("modal-per-minute", f.modalPerMinute, 0), flagOf("modal", modal.CheckSettings(f.settings())))
}

func (f *modalFlags) settings() sandboxes.Modal {
	return sandboxes.Modal{Image: f.modal, App: f.modalApp, Sandboxes: f.modalSandboxes, PerMinute: f.modalPerMinute}
}
