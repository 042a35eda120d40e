package main

import (
	"errors"

	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/backends/ssh"
	"github.com/turngate/turngate/sandboxes"
)

// sshFlags name the hosts of the backend ssh.
type sshFlags struct{ ssh, sshConfig string }

func (f *sshFlags) add(fl *pflag.FlagSet, prefix string) {
	fl.StringVar(&f.ssh, "ssh", "", prefix+"hosts of the ssh sandbox, comma-separated, as ssh takes them: HOST, USER@HOST or a name in its settings")
	fl.StringVar(&f.sshConfig, "ssh-config", "", prefix+"settings of ssh (default: ~/.ssh/config and /etc/ssh/ssh_config)")
}

// check returns all errors in these flags.
func (f *sshFlags) check() error {
	var wrong []error
	for _, host := range splitList(f.ssh) {
		wrong = append(wrong, flagOf("ssh", ssh.CheckHost(host)))
	}
	return errors.Join(wrong...)
}

func (f *sshFlags) settings() sandboxes.SSH {
	return sandboxes.SSH{Hosts: splitList(f.ssh), Config: f.sshConfig}
}
