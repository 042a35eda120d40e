package main

import (
	"errors"

	"github.com/spf13/pflag"

	"github.com/turngate/turngate/sandboxes"
)

// backendFlags are the settings of the backends that every command with sandboxes has.
type backendFlags struct {
	local      localFlags
	ssh        sshFlags
	e2b        e2bFlags
	prime      primeFlags
	kubernetes kubernetesFlags
	modal      modalFlags
	prices     priceFlags // of the commands whose results have costs
}

// add adds the flags. Each help text begins with prefix.
func (f *backendFlags) add(fl *pflag.FlagSet, prefix string) {
	f.local.add(fl, prefix)
	f.ssh.add(fl, prefix)
	f.e2b.add(fl, prefix)
	f.prime.add(fl, prefix)
	f.kubernetes.add(fl, prefix)
	f.modal.add(fl, prefix)
}

// check returns all errors in these flags.
func (f *backendFlags) check() error {
	return errors.Join(f.local.check(), f.ssh.check(), f.e2b.check(), f.prime.check(), f.kubernetes.check(), f.modal.check(), f.prices.check())
}

// set puts the settings of the flags into a host.
func (f *backendFlags) set(host *sandboxes.Host) (err error) {
	host.Local, host.SSH, host.Modal = f.local.settings(), f.ssh.settings(), f.modal.settings()
	if host.E2B, err = f.e2b.settings(); err != nil {
		return err
	}
	if host.Prime, err = f.prime.settings(); err != nil {
		return err
	}
	host.Kubernetes, err = f.kubernetes.settings()
	return err
}
