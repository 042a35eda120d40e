package main

import (
	"runtime"
	"runtime/debug"
	"strings"
)

// buildOf describes this program: its version, commit and date, as far as the build has
// them. A program that `go install` has made has its module's version.
func buildOf() string {
	name, rest := version, []string{}
	if info, ok := debug.ReadBuildInfo(); ok {
		settings := map[string]string{}
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
		if name == "dev" && info.Main.Version != "" && info.Main.Version != "(devel)" {
			name = info.Main.Version
		}
		if commit := settings["vcs.revision"]; commit != "" {
			commit = "commit " + commit[:min(12, len(commit))]
			if settings["vcs.modified"] == "true" {
				commit += " with changes"
			}
			rest = append(rest, commit)
		}
		if at := settings["vcs.time"]; at != "" {
			rest = append(rest, "of "+at)
		}
	}
	rest = append(rest, runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH)
	return name + " (" + strings.Join(rest, ", ") + ")"
}
