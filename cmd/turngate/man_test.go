package main

import (
	"cmp"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

var manDir = flag.String("man", "", "folder for the man pages of a release") //nolint:gochecknoglobals // a flag

// TestEveryCommandHasAManPage writes the man pages, which a release has, and looks for
// each command and flag in them.
func TestEveryCommandHasAManPage(t *testing.T) {
	t.Setenv("HOME", "/home/user") // defaults of flags have it
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("XDG_CACHE_HOME", "")
	dir, root := cmp.Or(*manDir, t.TempDir()), rootCommand(nil, nil, nil)
	root.DisableAutoGenTag = true
	if err := doc.GenManTree(root, &doc.GenManHeader{Source: "turngate", Manual: "turngate"}, dir); err != nil {
		t.Fatal(err)
	}
	pages := 0
	var look func(*cobra.Command)
	look = func(cmd *cobra.Command) {
		if cmd.Hidden || cmd.Name() == "help" {
			return
		}
		pages++
		data, err := os.ReadFile(filepath.Join(dir, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1"))
		page := strings.ReplaceAll(string(data), `\`, "")
		if err != nil || !strings.Contains(page, `.TH "TURNGATE`) {
			t.Errorf("%s: %v, %.80q", cmd.CommandPath(), err, page)
		}
		cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(page, "--"+f.Name) {
				t.Errorf("the page of %s lacks --%s", cmd.CommandPath(), f.Name)
			}
		})
		for _, c := range cmd.Commands() {
			look(c)
		}
	}
	look(root)
	if pages < 50 {
		t.Errorf("%d pages were found", pages)
	}
}
