package docker

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	"github.com/moby/buildkit/client/llb/sourceresolver"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	gateway "github.com/moby/buildkit/frontend/gateway/client"
	"github.com/moby/buildkit/solver/pb"
)

// confined is the gateway of a build. It refuses sources that the engine itself
// would fetch, from the host's own network: URLs of files and of git
// repositories.
type confined struct{ gateway.Client }

// Solve implements gateway.Client.
func (c confined) Solve(ctx context.Context, req gateway.SolveRequest) (*gateway.Result, error) {
	if req.Frontend != "" {
		return nil, fmt.Errorf("the frontend %q is not allowed in a build", req.Frontend)
	}
	if err := checkSources(req.Definition); err != nil {
		return nil, err
	}
	for _, d := range req.FrontendInputs {
		if err := checkSources(d); err != nil {
			return nil, err
		}
	}
	return c.Client.Solve(ctx, req)
}

// ResolveSourceMetadata implements gateway.Client.
func (c confined) ResolveSourceMetadata(ctx context.Context, op *pb.SourceOp, opt sourceresolver.Opt) (*sourceresolver.MetaResponse, error) {
	if err := checkSource(op); err != nil {
		return nil, err
	}
	return c.Client.ResolveSourceMetadata(ctx, op, opt)
}

func checkSources(d *pb.Definition) error {
	if d == nil {
		return nil
	}
	for _, data := range d.Def {
		var op pb.Op
		if err := op.UnmarshalVT(data); err != nil {
			return fmt.Errorf("read the steps of the build: %w", err)
		}
		if err := checkSource(op.GetSource()); err != nil {
			return err
		}
	}
	return nil
}

// checkSource allows images and the build context.
func checkSource(op *pb.SourceOp) error {
	if id := op.GetIdentifier(); op != nil && !strings.HasPrefix(id, "docker-image://") && !strings.HasPrefix(id, "local://") {
		return errRemote(id)
	}
	return nil
}

func errRemote(source string) error {
	return fmt.Errorf("ADD of %s is not allowed: the engine would fetch it from the network of its host; put the file into the task, or fetch it with RUN", source)
}

// checkClassicSources refuses the sources that the classic builder fetches
// itself. It also refuses variables in sources of ADD, because their values can
// come from a base image.
func checkClassicSources(dockerfile []byte) error {
	parsed, err := parser.Parse(bytes.NewReader(dockerfile))
	if err != nil {
		return err
	}
	for _, n := range parsed.AST.Children {
		nodes := []*parser.Node{n}
		if strings.EqualFold(n.Value, "onbuild") && n.Next != nil {
			nodes = append(nodes, n.Next.Children...)
		}
		for _, n := range nodes {
			if !strings.EqualFold(n.Value, "add") {
				continue
			}
			for w := n.Next; w != nil && w.Next != nil; w = w.Next { // the last word is the target
				// The builder removes quotes and escapes after the parser.
				plain := strings.ToLower(strings.NewReplacer(`"`, "", "'", "", `\`, "", "`", "").Replace(w.Value))
				if strings.Contains(plain, "$") {
					return fmt.Errorf("ADD %s (line %d): the classic builder takes no variable here; write the source out, or use COPY", w.Value, n.StartLine)
				}
				if strings.Contains(plain, "://") || strings.HasPrefix(plain, "git@") {
					return fmt.Errorf("line %d: %w", n.StartLine, errRemote(w.Value))
				}
			}
		}
	}
	return nil
}
