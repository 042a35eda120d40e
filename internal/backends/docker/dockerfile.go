package docker

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// classicFlags returns the flags of an instruction that the classic builder
// supports.
func classicFlags(instruction string) []string {
	switch strings.ToLower(instruction) {
	case "from":
		return []string{"platform"}
	case "copy":
		return []string{"from", "chown"}
	case "add":
		return []string{"chown"}
	case "healthcheck":
		return []string{"interval", "timeout", "start-period", "retries"}
	default:
		return nil
	}
}

// needsBuildKit names the first feature of a Dockerfile that the classic
// builder does not support, with its line. It returns "" if there is none.
func needsBuildKit(dockerfile []byte) (string, error) {
	parsed, err := parser.Parse(bytes.NewReader(dockerfile))
	if err != nil {
		return "", err
	}
	for _, n := range parsed.AST.Children {
		at := fmt.Sprintf("(line %d)", n.StartLine)
		if len(n.Heredocs) > 0 {
			return fmt.Sprintf("a here-document, %s <<%s %s", n.Value, n.Heredocs[0].Name, at), nil
		}
		nodes := []*parser.Node{n}
		if strings.EqualFold(n.Value, "onbuild") && n.Next != nil {
			nodes = append(nodes, n.Next.Children...)
		}
		for _, n := range nodes {
			for _, f := range n.Flags {
				name, _, _ := strings.Cut(strings.TrimPrefix(f, "--"), "=")
				if !slices.Contains(classicFlags(n.Value), name) {
					return fmt.Sprintf("%s --%s %s", strings.ToUpper(n.Value), name, at), nil
				}
			}
		}
	}
	return "", nil
}
