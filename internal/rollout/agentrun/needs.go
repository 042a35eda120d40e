package agentrun

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/turngate/turngate/internal/programs"
	"github.com/turngate/turngate/internal/rawjson"
	"github.com/turngate/turngate/internal/rollout/ends"
	"github.com/turngate/turngate/internal/rollout/place"
	"github.com/turngate/turngate/internal/rollout/stage"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
)

// lookLimit bounds the search for programs in a sandbox.
const lookLimit = time.Minute

// equip makes sure that the agent finds the programs it needs, and that a login
// shell keeps the agent's PATH. For a missing program that the agent's packages or
// turngate provide, it puts a script into a folder at the end of the PATH in env.
// Any other missing program ends the rollout with a fault that names it.
func (r *Runs) equip(ctx context.Context, dir, user string, env map[string]string) error {
	login, err := r.hasProfile(ctx)
	if err != nil || len(r.agent.Needs) == 0 && !login {
		return err
	}
	report, err := r.lookFor(ctx, user, env)
	if err != nil {
		return err
	}
	stubs := map[string][]byte{}
	var missing []string
	for _, name := range report.Missing {
		if path, ok := r.agent.Carries[name]; ok {
			stubs[name] = programs.Stub(place.Installed + "/" + path)
		} else if command, ok := programs.Provided()[name]; ok {
			stubs[name] = programs.Stub(sandboxes.HelperPath, command)
		} else {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return ends.Fail(schema.Faultf("agent", schema.CodeMissing, schema.WhoTask,
			"the sandbox lacks %s, which %s needs: add it to the image, or to the setup commands", strings.Join(missing, ", "), r.agent.Name))
	}
	if len(stubs) > 0 {
		if err := r.putStubs(ctx, dir+"/bin", user, stubs); err != nil {
			return err
		}
		env["PATH"] = strings.TrimPrefix(report.Path+":"+dir+"/bin", ":")
	}
	if !login {
		return nil
	}
	return r.keepLoginPath(ctx, cmp.Or(env["PATH"], report.Path))
}

// putStubs writes programs into a folder.
func (r *Runs) putStubs(ctx context.Context, bin, user string, stubs map[string][]byte) error {
	for name, script := range stubs {
		if err := r.Place.Main.Files().Write(ctx, bin+"/"+name, bytes.NewReader(script), 0o755, user); err != nil {
			return fmt.Errorf("put %s into the sandbox: %w", name, err)
		}
	}
	return nil
}

// lookFor searches the agent's PATH for the programs it needs.
func (r *Runs) lookFor(ctx context.Context, user string, env map[string]string) (programs.Report, error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	var out, errOut bytes.Buffer
	proc, err := r.Place.Start(ctx, r.Place.Main, "agent", sandboxes.Cmd{
		Args: append([]string{sandboxes.HelperPath, "look-for"}, r.agent.Needs...), Env: env, User: user, Stdout: &out, Stderr: &errOut, OutputLimit: 64 << 10,
	})
	if err != nil {
		return programs.Report{}, fmt.Errorf("look for programs: %w", err)
	}
	exit, err := stage.Await(ctx, proc)
	if err != nil {
		return programs.Report{}, fmt.Errorf("look for programs: %w", err)
	}
	var report programs.Report
	if err := json.Unmarshal(out.Bytes(), &report); err != nil || !exit.OK() {
		return report, fmt.Errorf("look for programs: %s: %w", exit, errors.Join(rawjson.Plain(err), errors.New(schema.Clip(errOut.String(), 500))))
	}
	return report, nil
}
