package images

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/turngate/turngate/sandboxes"
)

// State is the state of an image on an engine.
type State string

// The states of an image. The last two are results of Remove.
const (
	Missing State = "missing" // the engine lacks it
	Idle    State = "idle"    // no container uses it
	InUse   State = "in use"  // a container uses it
	Removed State = "removed"
	Kept    State = "kept" // it was not built by turngate
)

// Status describes one image of a task on an engine.
type Status struct {
	Task  string    `json:"task"`
	Kind  string    `json:"kind"` // Pulls or Builds
	Ref   string    `json:"ref"`
	ID    string    `json:"id,omitempty"`
	Size  int64     `json:"size"`          // as in sandboxes.BuiltImage; a pulled image counts whole
	Used  time.Time `json:"used,omitzero"` // as in sandboxes.BuiltImage
	State State     `json:"state"`
}

// Store is the part of an engine that List and Remove use.
type Store interface {
	BuildRef(how *sandboxes.Build) (string, error)
	BuiltImages(ctx context.Context) ([]sandboxes.BuiltImage, error)
	Pulled(ctx context.Context, ref string) (sandboxes.BuiltImage, bool, error)
	RemoveBuilt(ctx context.Context, i sandboxes.BuiltImage) (bool, error)
}

// List returns the states of the wanted images, in their order. A build that was
// made for several trainers has several images.
func List(ctx context.Context, s Store, wants []Want) ([]Status, error) {
	var out []Status
	err := walk(ctx, s, wants, func(w Status, _ sandboxes.BuiltImage) error {
		out = append(out, w)
		return nil
	})
	return out, err
}

// Remove removes the wanted images that builds left, unless a container uses
// them, and returns the states of all wanted images afterwards. It keeps pulled
// images, which other programs may need. The error joins the errors of all
// images.
func Remove(ctx context.Context, s Store, wants []Want) ([]Status, error) {
	var out []Status
	var failed []error
	gone := map[string]State{} // by Ref: tasks can share an image
	err := walk(ctx, s, wants, func(w Status, i sandboxes.BuiltImage) error {
		state, again := gone[w.Ref]
		switch {
		case again:
			w.State = state
		case w.State == Missing:
		case w.Kind == Pulls:
			w.State = Kept
		case w.State == Idle:
			ok, err := s.RemoveBuilt(ctx, i)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			switch {
			case err != nil:
				failed = append(failed, err)
			case ok:
				w.State = Removed
			default:
				w.State = InUse
			}
		}
		gone[w.Ref] = w.State
		out = append(out, w)
		return nil
	})
	return out, errors.Join(append(failed, err)...)
}

// walk calls each with the state of every wanted image.
func walk(ctx context.Context, s Store, wants []Want, each func(Status, sandboxes.BuiltImage) error) error {
	var built []sandboxes.BuiltImage
	if slices.ContainsFunc(wants, func(w Want) bool { return w.Build != nil }) {
		var err error
		if built, err = s.BuiltImages(ctx); err != nil {
			return err
		}
	}
	seen := map[[2]string]bool{}
	for _, w := range wants {
		st := Status{Task: w.Task, Kind: Pulls, Ref: w.Image, State: Missing}
		if w.Build != nil {
			ref, err := s.BuildRef(w.Build)
			if err != nil {
				return fmt.Errorf("task %s: %w", w.Task, err)
			}
			st.Kind, st.Ref = Builds, ref
		}
		if seen[[2]string{w.Task, st.Ref}] {
			continue // several sandboxes of the task have it
		}
		seen[[2]string{w.Task, st.Ref}] = true
		have, err := find(ctx, s, built, st)
		if err != nil {
			return err
		}
		if len(have) == 0 {
			if err := each(st, sandboxes.BuiltImage{}); err != nil {
				return err
			}
		}
		for _, i := range have {
			st.Ref, st.ID, st.Size, st.Used, st.State = i.Ref, i.ID, i.Size, i.Used, Idle
			if i.InUse {
				st.State = InUse
			}
			if err := each(st, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// find returns the images that the engine has for a status.
func find(ctx context.Context, s Store, built []sandboxes.BuiltImage, w Status) ([]sandboxes.BuiltImage, error) {
	if w.Kind == Pulls {
		i, ok, err := s.Pulled(ctx, w.Ref)
		if err != nil || !ok {
			return nil, err
		}
		return []sandboxes.BuiltImage{i}, nil
	}
	var out []sandboxes.BuiltImage
	for _, i := range built {
		if i.Shared == w.Ref {
			out = append(out, i)
		}
	}
	return out, nil
}
