// Package images pulls, builds, lists and removes the images of tasks on a host.
package images

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// Engine provides images.
type Engine interface {
	// EnsureImage pulls or builds an image that the engine lacks and returns its
	// name.
	EnsureImage(ctx context.Context, ref string, how *sandboxes.Build, log func(line string)) (string, error)
}

// Want is one image that a task needs.
type Want struct {
	Task  string
	Image string           // image to pull, or
	Build *sandboxes.Build // image to build
}

// Outcome is the result for one Want.
type Outcome struct {
	Want
	Ref  string // the image's name in the engine
	Err  error
	Took time.Duration
}

// Kinds of images. The empty kind means both.
const (
	Pulls  = "pull"
	Builds = "build"
)

// Of lists the images of a task's sandbox, its side-cars and its verifiers'
// sandboxes that are pulled or built, as kind says. Builds read their files from the
// task's bundle.
func Of(t *tasks.Task, bundle *tasks.Bundle, kind string) ([]Want, error) {
	var out []Want
	var problems []error
	add := func(image string, build *schema.Build) {
		w := Want{Task: t.Request.Task.Name, Image: image}
		switch {
		case kind != Builds && image != "" && build == nil:
			out = append(out, w)
		case kind != Pulls && build != nil:
			var err error
			if w.Build, err = sandboxes.NewBuild(bundle, build, w.Task); err != nil {
				problems = append(problems, err)
				return
			}
			out = append(out, w)
		}
	}
	sandbox := func(s *schema.SandboxChoice) {
		if s == nil {
			return
		}
		add(s.Image, s.Build)
		for _, one := range s.Services {
			add(one.Image, one.Build)
		}
	}
	verifier := func(v *schema.Verify) {
		if v != nil {
			sandbox(v.Separate)
		}
	}
	sandbox(&t.Request.Sandbox)
	verifier(t.Request.Verify)
	for i := range t.Request.Steps {
		verifier(t.Request.Steps[i].Verify)
	}
	return out, errors.Join(problems...)
}

// Warm makes images ready, up to parallel at a time. It calls each with the
// outcome of every image, and line with every line of a build or a pull; these
// calls do not overlap. It returns the joined errors of the images.
func Warm(ctx context.Context, e Engine, wants []Want, parallel int, each func(Outcome), line func(Want, string)) error {
	var mu sync.Mutex
	var problems []error
	next := make(chan Want)
	var workers sync.WaitGroup
	for range min(max(parallel, 1), max(len(wants), 1)) {
		workers.Go(func() {
			for w := range next {
				began := time.Now()
				ref, err := e.EnsureImage(ctx, w.Image, w.Build, func(text string) {
					mu.Lock()
					defer mu.Unlock()
					line(w, text)
				})
				mu.Lock()
				if err != nil {
					problems = append(problems, fmt.Errorf("task %s: %w", w.Task, err))
				}
				each(Outcome{w, ref, err, time.Since(began)})
				mu.Unlock()
			}
		})
	}
	for _, w := range wants {
		select {
		case next <- w:
			continue
		case <-ctx.Done():
		}
		break
	}
	close(next)
	workers.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errors.Join(problems...)
}
