package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/backends"
	"github.com/turngate/turngate/sandboxes"
	"github.com/turngate/turngate/tasks"
)

// addSandbox adds the flags --sandbox and --image. The first name is the default, unless
// chooseSandbox selects another.
// The prefix precedes the help, the suffix follows the help of --image.
func addSandbox(fl *pflag.FlagSet, sandbox, image *string, prefix, suffix string) {
	fl.Var(newChoice(sandbox, backends.Names()...), "sandbox", prefix+"sandbox backend: "+orList(backends.Names())+"; "+backends.WithImages()[0]+" by default for --image, and if all tasks need an image")
	fl.StringVar(image, "image", "", prefix+"image for the sandbox of "+orList(backends.WithImages())+suffix)
}

// chooseSandbox selects the sandbox of a command that names none: one with images for an image,
// or if all tasks of the paths need one.
func (f *runFlags) chooseSandbox(cmd *cobra.Command, paths []string) {
	if cmd.Flags().Changed("sandbox") || f.backends.local.images(f.sandbox) {
		return
	}
	needs := f.image != ""
	if !needs {
		dirs, err := tasks.Find(paths)
		needs = err == nil && len(dirs) > 0 && !slices.ContainsFunc(dirs, func(dir string) bool { return !tasks.NeedsImage(dir) })
	}
	if needs {
		_ = cmd.Flags().Set("sandbox", backends.WithImages()[0]) // one of its values; a job resumes with it
	}
}

// hasImages reports whether a backend makes sandboxes of images.
func hasImages(name string) bool { return slices.Contains(backends.WithImages(), name) }

// openBackends makes the named sandbox backends; without names, all that work on
// this host. A backend for which h has settings must work, as check tells.
func openBackends(ctx context.Context, names []string, h sandboxes.Host, check func(context.Context, sandboxes.Backend) error) ([]sandboxes.Backend, error) {
	var out []sandboxes.Backend
	var problems []error
	for _, name := range names {
		if err := oneOf("sandboxes", name, backends.Names()...); err != nil {
			return nil, usageOf(err)
		}
	}
	for _, k := range backends.All() {
		if len(names) > 0 && !slices.Contains(names, k.Name) {
			continue
		}
		b, err := k.New(h)
		if err != nil {
			return nil, fmt.Errorf("the %s sandbox: %w", k.Name, err)
		}
		if err := check(ctx, b); err != nil {
			if len(names) > 0 || k.Asked != nil && k.Asked(h) {
				return nil, fmt.Errorf("the %s sandbox: %w", k.Name, err)
			}
			problems = append(problems, fmt.Errorf("%s: %w", k.Name, err))
			continue
		}
		out = append(out, b)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no sandbox works here: %w", errors.Join(problems...))
	}
	return out, nil
}

// warmImages lists the images of the backends every minute until the context
// ends. The returned function gives the last list.
func warmImages(ctx context.Context, list []sandboxes.Backend) func() []string {
	const every, most = time.Minute, 200
	var stores []sandboxes.ImageStore
	for _, b := range list {
		if store, ok := b.(sandboxes.ImageStore); ok {
			stores = append(stores, store)
		}
	}
	if len(stores) == 0 {
		return func() []string { return nil }
	}
	var found atomic.Pointer[[]string]
	found.Store(&[]string{})
	go func() {
		for tick := time.NewTicker(every); ctx.Err() == nil; {
			images := imagesIn(ctx, stores)
			images = images[:min(len(images), most)]
			found.Store(&images)
			select {
			case <-tick.C:
			case <-ctx.Done():
				tick.Stop()
			}
		}
	}()
	return func() []string { return *found.Load() }
}

func imagesIn(ctx context.Context, stores []sandboxes.ImageStore) []string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var all []string
	for _, s := range stores {
		if images, err := s.Images(ctx); err == nil {
			all = append(all, images...)
		}
	}
	return all
}

// orList joins names for a sentence, such as "a, b or c".
func orList(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}
