package images_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/images"
	"github.com/turngate/turngate/sandboxes"
)

// store is an engine with these images; the name of a build is its task's.
type store struct {
	built   []sandboxes.BuiltImage
	pulled  []string
	refuses map[string]error // by Ref; nil: a container has taken it
	removed []string
}

func (s *store) BuildRef(how *sandboxes.Build) (string, error) { return "built:" + how.Task, nil }

func (s *store) BuiltImages(context.Context) ([]sandboxes.BuiltImage, error) { return s.built, nil }

func (s *store) Pulled(_ context.Context, ref string) (sandboxes.BuiltImage, bool, error) {
	return sandboxes.BuiltImage{Ref: ref}, slices.Contains(s.pulled, ref), nil
}

func (s *store) RemoveBuilt(_ context.Context, i sandboxes.BuiltImage) (bool, error) {
	if err, ok := s.refuses[i.Ref]; ok {
		return false, err
	}
	s.removed = append(s.removed, i.Ref)
	return true, nil
}

func said(list []images.Status) string {
	var out []string
	for _, i := range list {
		out = append(out, fmt.Sprintf("%s %s %s %s", i.Task, i.Kind, i.Ref, i.State))
	}
	return strings.Join(out, "\n")
}

func TestTheImagesOfTasksAreListedAndRemoved(t *testing.T) {
	broken := errors.New("the engine is broken")
	s := &store{
		built: []sandboxes.BuiltImage{
			{Ref: "built:one", Shared: "built:one"}, {Ref: "built:one-of-a-trainer", Shared: "built:one"}, {Ref: "built:busy", Shared: "built:busy", InUse: true},
			{Ref: "built:taken", Shared: "built:taken"}, {Ref: "built:broken", Shared: "built:broken"}, {Ref: "built:foreign", Shared: "built:foreign"},
		},
		pulled: []string{"debian:12"}, refuses: map[string]error{"built:taken": nil, "built:broken": broken},
	}
	built := func(task, name string) images.Want {
		return images.Want{Task: task, Build: &sandboxes.Build{Task: name}}
	}
	wants := []images.Want{
		built("a", "one"), built("a", "one"), built("b", "one"), built("c", "busy"), built("d", "taken"), built("e", "none"), built("f", "broken"),
		{Task: "g", Image: "debian:12"}, {Task: "g", Image: "debian:99"},
	}
	got, err := images.List(t.Context(), s, wants)
	if want := `a build built:one idle
a build built:one-of-a-trainer idle
b build built:one idle
b build built:one-of-a-trainer idle
c build built:busy in use
d build built:taken idle
e build built:none missing
f build built:broken idle
g pull debian:12 idle
g pull debian:99 missing`; err != nil || said(got) != want {
		t.Errorf("listed %v:\n%s", err, said(got))
	}
	got, err = images.Remove(t.Context(), s, wants)
	if want := `a build built:one removed
a build built:one-of-a-trainer removed
b build built:one removed
b build built:one-of-a-trainer removed
c build built:busy in use
d build built:taken in use
e build built:none missing
f build built:broken idle
g pull debian:12 kept
g pull debian:99 missing`; !errors.Is(err, broken) || said(got) != want {
		t.Errorf("removed with %v:\n%s", err, said(got))
	}
	if want := []string{"built:one", "built:one-of-a-trainer"}; !slices.Equal(s.removed, want) {
		t.Errorf("removed %v, want %v", s.removed, want)
	}
}
