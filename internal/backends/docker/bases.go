package docker

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// checkBases refuses images that a Dockerfile names by an id or its first digits. The
// classic builder takes these, so a build could try all of them and read the files of
// another trainer. The triggers of a base image are not seen.
func checkBases(dockerfile []byte, args map[string]string) error {
	parsed, err := parser.Parse(bytes.NewReader(dockerfile))
	if err != nil {
		return err
	}
	stages, meta, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		return err
	}
	lex := shell.NewLex(parsed.EscapeToken)
	var env []string
	expand := func(word string) (string, error) {
		out, _, err := lex.ProcessWord(word, shell.EnvsFromSlice(env))
		return out, err
	}
	for _, line := range meta { // before the first FROM
		for _, a := range line.Args {
			value, given := args[a.Key]
			if !given && a.Value != nil {
				if value, err = expand(*a.Value); err != nil {
					return err
				}
			}
			env = append(env, a.Key+"="+value)
		}
	}
	var earlier []string
	isStage := func(name string) bool {
		return slices.ContainsFunc(earlier, func(s string) bool { return strings.EqualFold(s, name) })
	}
	for _, stage := range stages {
		base, err := expand(stage.BaseName)
		if err != nil {
			return err
		}
		if idLike(base) && !isStage(base) {
			return errID("FROM " + stage.BaseName)
		}
		for _, command := range stage.Commands {
			var from []string
			switch c := command.(type) {
			case *instructions.CopyCommand:
				from = []string{c.From}
			case *instructions.OnbuildCommand: // it runs in a later stage, or in a later build
				if from, err = trigger(c.Expression); err != nil {
					return err
				}
			}
			for _, name := range from {
				if _, number := strconv.Atoi(name); number != nil && idLike(name) && !isStage(name) {
					return errID("COPY --from=" + name)
				}
			}
		}
		if stage.Name != "" {
			earlier = append(earlier, stage.Name)
		}
	}
	return nil
}

// trigger returns the images that a command of ONBUILD copies from.
func trigger(expression string) ([]string, error) {
	parsed, err := parser.Parse(strings.NewReader(expression))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, n := range parsed.AST.Children {
		command, err := instructions.ParseCommand(n)
		if err != nil {
			return nil, err
		}
		if c, ok := command.(*instructions.CopyCommand); ok {
			out = append(out, c.From)
		}
	}
	return out, nil
}

// idLike reports whether the engine may take a name for an id of an image.
func idLike(name string) bool {
	ok, err := regexp.MatchString(`^(sha256:)?[0-9a-f]{1,64}$`, name)
	return ok && err == nil
}

func errID(line string) error {
	return fmt.Errorf("%s may be an id of an image, which the classic builder would take: name the image with a tag or a digest", line)
}
