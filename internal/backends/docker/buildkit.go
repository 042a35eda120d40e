package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/docker/docker/client"
	buildkit "github.com/moby/buildkit/client"
	dockerfile "github.com/moby/buildkit/frontend/dockerfile/builder"
	gateway "github.com/moby/buildkit/frontend/gateway/client"
	"github.com/moby/buildkit/session"
	"github.com/moby/buildkit/session/auth/authprovider"
	"github.com/moby/buildkit/solver/pb"
	"github.com/tonistiigi/fsutil"

	"github.com/turngate/turngate/schema"
)

// kit is the engine's BuildKit, reached through the engine's own socket. The
// frontend linked into this program reads the Dockerfile, so the syntax does
// not depend on the engine's age. A "# syntax" line has no effect: no frontend
// is pulled from a registry.
type kit struct{ *buildkit.Client }

// hasBuildKit reports whether the engine has a BuildKit.
func hasBuildKit(ctx context.Context, api *client.Client) (bool, error) {
	conn, err := api.DialHijack(ctx, "/grpc", "h2c", nil)
	if err != nil && strings.Contains(err.Error(), "unable to upgrade") {
		return false, nil // the engine does not know the path
	}
	if err != nil {
		return false, fmt.Errorf("%w: reach its BuildKit: %w", errEngine, err)
	}
	return true, conn.Close()
}

// openKit connects to the engine's BuildKit. It returns nil if the engine has
// none.
func openKit(ctx context.Context, api *client.Client) (*kit, error) {
	has, err := hasBuildKit(ctx, api)
	if err != nil || !has {
		return nil, err //nolint:nilnil // the engine does not know the path
	}
	c, err := buildkit.New(ctx, "",
		buildkit.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return api.DialHijack(ctx, "/grpc", "h2c", nil)
		}),
		buildkit.WithSessionDialer(func(ctx context.Context, proto string, meta map[string][]string) (net.Conn, error) {
			return api.DialHijack(ctx, "/session", proto, meta)
		}))
	if err != nil {
		return nil, fmt.Errorf("%w: reach its BuildKit: %w", errEngine, err)
	}
	return &kit{c}, nil
}

func (k *kit) build(ctx context.Context, w *building, say func(string)) error {
	attrs := map[string]string{
		"filename": w.dockerfile,
		"cmdline":  "docker/dockerfile", // the frontend then ignores a "# syntax" line
		// Use an image of the host without asking its registry.
		"image-resolve-mode": pb.AttrImageResolveModePreferLocal,
	}
	if w.how.Target != "" {
		attrs["target"] = w.how.Target
	}
	if w.limits.Network == schema.NetworkNone {
		attrs["force-network-mode"] = "none"
	}
	if w.limits.MemoryBytes > 0 {
		attrs["memory"], attrs["memswap"] = strconv.FormatInt(w.limits.MemoryBytes, 10), strconv.FormatInt(w.limits.MemoryBytes, 10)
	}
	if w.limits.CPUs > 0 {
		attrs["cpuperiod"], attrs["cpuquota"] = strconv.Itoa(cpuPeriod), strconv.FormatInt(int64(w.limits.CPUs*cpuPeriod), 10)
	}
	for name, v := range w.labels {
		attrs["label:"+name] = v
	}
	for name, v := range w.how.Args {
		attrs["build-arg:"+name] = v
	}
	// After the arguments of the request, so that it cannot choose the caches of
	// another trainer.
	attrs["build-arg:BUILDKIT_CACHE_MOUNT_NS"] = w.how.CacheSpace()
	login, err := loadLogin()
	if err != nil {
		return err
	}
	statuses := make(chan *buildkit.SolveStatus)
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		log := newBuildLog(say)
		for s := range statuses {
			log.status(s)
		}
		log.end()
	}()
	opt := buildkit.SolveOpt{
		Exports:     []buildkit.ExportEntry{{Type: "moby", Attrs: map[string]string{"name": w.ref}}},
		LocalMounts: map[string]fsutil.FS{"context": w.context, "dockerfile": w.context},
		// The engine treats a file of the same name, size and time as unchanged
		// since the last build with this key.
		SharedKey:     w.ref,
		FrontendAttrs: attrs,
		Session:       []session.Attachable{authprovider.NewDockerAuthProvider(authprovider.DockerAuthProviderConfig{AuthConfigProvider: authprovider.LoadAuthConfig(login)})},
	}
	noLimits := false
	_, err = k.Build(ctx, opt, "turngate", func(ctx context.Context, g gateway.Client) (*gateway.Result, error) {
		caps := g.BuildOpts().LLBCaps
		if (w.limits.CPUs > 0 || w.limits.MemoryBytes > 0) && caps.Supports(pb.CapExecMetaLinuxResources) != nil {
			noLimits = true
			return nil, errNoLimits
		}
		return dockerfile.Build(ctx, confined{g})
	}, statuses)
	<-printed
	if noLimits {
		return errNoLimits
	}
	if err != nil {
		return errors.New(strings.TrimPrefix(err.Error(), "failed to solve: "))
	}
	return nil
}

// cpuPeriod is the scheduler's period in microseconds.
const cpuPeriod = 100_000

// buildLog converts the progress of BuildKit into lines.
type buildLog struct {
	say   func(string)
	begun map[string]bool
	ended map[string]bool
	steps map[string]*lines // the output of each step
}

func newBuildLog(say func(string)) *buildLog {
	return &buildLog{say: say, begun: map[string]bool{}, ended: map[string]bool{}, steps: map[string]*lines{}}
}

func (b *buildLog) status(s *buildkit.SolveStatus) {
	for _, v := range s.Vertexes {
		id := v.Digest.String()
		switch {
		case strings.HasPrefix(v.Name, "[internal]"):
		case v.Started != nil && !b.begun[id]:
			b.begun[id] = true
			line := v.Name
			if v.Cached {
				line += " (cached)"
			}
			b.say(line)
		}
		if v.Error != "" && !b.ended[id] {
			b.ended[id] = true
			b.say("error: " + v.Error)
		}
	}
	for _, l := range s.Logs {
		id := l.Vertex.String()
		if b.steps[id] == nil {
			b.steps[id] = &lines{say: b.say}
		}
		b.steps[id].add(string(l.Data))
	}
	for _, w := range s.Warnings {
		b.say("warning: " + string(w.Short))
	}
}

func (b *buildLog) end() {
	for _, step := range b.steps {
		step.end()
	}
}
