package agentrun

import (
	"context"
	"errors"
	"io/fs"
	"strings"

	"github.com/turngate/turngate/sandboxes"
)

// loginPath is the first file that a login shell reads after /etc/profile, which
// sets PATH anew in many distributions. Several agents run each command in a login
// shell and would lose the PATH of the image. The file exists only while the agent runs.
const loginPath = "/etc/profile.d/00-turngate.sh"

// hasProfile reports whether the agent's login shells would read /etc/profile.
func (r *Runs) hasProfile(ctx context.Context) (bool, error) {
	if r.agent.Dialect == "" {
		return false, nil
	}
	_, err := r.Place.Main.Files().Stat(ctx, "/etc/profile")
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// keepLoginPath gives login shells the agent's PATH.
func (r *Runs) keepLoginPath(ctx context.Context, path string) error {
	err := r.Place.Main.Files().Write(ctx, loginPath, strings.NewReader("export PATH='"+strings.ReplaceAll(path, "'", `'\''`)+"'\n"), 0o644, "root")
	if errors.Is(err, sandboxes.ErrLost) || ctx.Err() != nil {
		return err
	}
	if err != nil {
		r.rec.Note("a login shell may lose the agent's PATH: %v", err)
	}
	return nil
}

// Leave removes what Run has put into the sandbox for the agent's shells. It is called
// after the agent's processes have ended.
func (r *Runs) Leave(ctx context.Context) error {
	if err := r.Place.Main.Files().Remove(ctx, loginPath); errors.Is(err, sandboxes.ErrLost) {
		return err
	}
	return nil
}
