package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/contexts"
	"github.com/turngate/turngate/internal/seal"
	"github.com/turngate/turngate/jobs"
)

// trustFlags let a job of another person have what it wants of this user.
type trustFlags struct{ trust bool }

func (f *trustFlags) add(fl *pflag.FlagSet, of string) {
	fl.BoolVar(&f.trust, "trust", false, of+"give a job that this user has not written what it wants of this user: keys, variables, files, accounts")
}

// sealed returns the part of a plan that decides what a run of it does.
func sealed(p *jobs.Plan) []byte {
	type trial struct{ Name, Dir, Digest string }
	var trials []trial
	for _, t := range p.Trials {
		trials = append(trials, trial{t.Name, t.Dir, t.Digest})
	}
	data, err := json.Marshal(map[string]any{"id": p.ID, "flags": p.Flags, "args": p.Args, "argv": p.Argv, "variants": p.Variants, "trials": trials})
	if err != nil {
		return nil
	}
	return data
}

// userKey opens the key of this user.
func userKey() (*seal.Key, error) {
	folder, err := contexts.Folder()
	if err != nil {
		return nil, err
	}
	return seal.Open(folder)
}

// sealJob records that this user wrote a job. Without a key, later commands take the job for
// one of another person.
func sealJob(cmd *cobra.Command, j *jobs.Job) error {
	key, err := userKey()
	if err != nil {
		log := logger(cmd)
		log.Warn().Err(err).Msg("turngate will not know that this user wrote the job")
		return nil
	}
	return j.SetSeal(key.Of(sealed(&j.Plan)))
}

// isOwn reports whether this user wrote a job.
func isOwn(p *jobs.Plan) bool {
	key, err := userKey()
	return err == nil && p.Seal != "" && key.Fits(p.Seal, sealed(p))
}

// check names what a job takes of this user with these of its flags. It refuses a job of
// another person that takes something, unless the user agrees.
func (f *trustFlags) check(cmd *cobra.Command, dir string, p *jobs.Plan, flags map[string][]string) error {
	wants := wantsOf(flags)
	if len(wants) == 0 {
		return nil
	}
	list := "\n  " + strings.Join(wants, "\n  ")
	if f.trust || isOwn(p) {
		fmt.Fprintf(cmd.ErrOrStderr(), "the job %s gets:%s\n", oneLine(shown(dir), 400), list)
		return nil
	}
	if !isTerminal(os.Stdin) || !isTerminal(os.Stderr) {
		return usage("the job %s was not written by this user with this configuration, and wants:%s\n--trust gives it that; or start a new job", oneLine(shown(dir), 400), list)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "The job %s was not written by this user with this configuration, and wants:%s\nGive it that? y or n [n] ", oneLine(shown(dir), 400), list)
	answer, err := readLine(cmd.Context(), cmd.InOrStdin())
	if err != nil {
		return err
	}
	if said := strings.ToLower(strings.TrimSpace(answer)); said != "y" && said != "yes" {
		return &exitError{exitUsage, errors.New("nothing was given to the job, and nothing was run")}
	}
	return nil
}

// wantsOf names what a run with these flags takes of this user's secrets, a line each.
func wantsOf(flags map[string][]string) (list []string) {
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		for _, value := range flags[name] {
			if want := wantOf(name, value, flags); want != "" {
				list = append(list, oneLine(want, 400)+" (--"+oneLine(name, 60)+")")
			}
		}
	}
	return list
}

// wantOf names what one flag takes; empty: nothing.
func wantOf(name, value string, flags map[string][]string) string {
	given := func(kind string) string {
		if variable, _, literal := strings.Cut(value, "="); !literal {
			return "your variable " + variable + ", for " + kind
		}
		return ""
	}
	if value == "" {
		return ""
	}
	switch name {
	case "trainer":
		kind, where, _ := strings.Cut(value, ":")
		switch {
		case kind != "upstream":
			return "your file " + where + ", as the answers of the model"
		case os.Getenv("TURNGATE_UPSTREAM_KEY")+os.Getenv("TURNGATE_UPSTREAM_KEY_FILE") != "":
			return "your key in TURNGATE_UPSTREAM_KEY, for " + where
		}
		return ""
	case "task-env":
		return given("its tasks")
	case "agent-env":
		return given("its agents")
	case "verifier-env":
		return given("its verifiers")
	case "task-env-file":
		return "the variables in your file " + value + ", for its tasks"
	case "upstreams":
		return "your file " + value + ", and the files of keys that it names, for the URLs in it"
	case "creds":
		return "your credential " + value + ", for the server " + strings.Join(flags["nats"], ", ")
	case "ssh":
		return "your account at the hosts " + value
	case "ssh-config":
		return "your file " + value + ", whose commands ssh runs on this host"
	case "kubernetes":
		return "your rights in the namespace " + value
	case "kubernetes-config":
		return "your file " + value + ", whose commands run on this host"
	case "e2b", "prime", "modal":
		return "your account at " + name + ", for " + value
	case "local-images":
		return "the images in your folder " + value
	case "agents":
		return "the programs in the folder " + value
	default:
		return ""
	}
}
