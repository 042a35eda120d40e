package tasks

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/turngate/turngate/schema"
)

// Missing is a variable that a task asks for and that the submitter did not give.
type Missing struct {
	Name  string `json:"name"`
	Where string `json:"where"` // field of the task, or name of its file
	Empty bool   `json:"empty"` // the task has no default for it
}

// miss records a variable that the submitter did not give.
func (t *Task) miss(name, where string, empty bool) {
	for i, m := range t.Missing {
		if m.Name == name {
			t.Missing[i].Empty = m.Empty || empty
			return
		}
	}
	t.Missing = append(t.Missing, Missing{name, where, empty})
}

// noteMissing names the variables that are empty in a note.
func (t *Task) noteMissing() {
	var names []string
	for _, m := range t.Missing {
		if m.Empty {
			names = append(names, m.Name)
		}
	}
	if len(names) == 0 {
		return
	}
	text := schema.Clip("the submitter did not give the task these variables, so they are empty: "+strings.Join(names, ", "), 1000)
	notes := &t.Request.Task.Notes
	*notes = slices.Insert((*notes)[:min(len(*notes), schema.MaxNotes-1)], 0, text)
}

var envTemplate = regexp.MustCompile(`^\$\{([^}:]+)(:-(.*))?\}$`)

// expand replaces values of the form ${VAR} or ${VAR:-default} by the variables
// that the submitter gave. A value with any other text around the variable stays
// unchanged.
func (t *Task) expand(field string, env map[string]string) map[string]string {
	if len(env) == 0 {
		return nil
	}
	out := make(map[string]string, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		m := envTemplate.FindStringSubmatch(env[k])
		if m == nil {
			out[k] = env[k]
			continue
		}
		value, ok := t.env[m[1]]
		if !ok {
			value = m[3]
			t.miss(m[1], fmt.Sprintf("%s.%s", field, k), m[2] == "")
		}
		out[k] = value
	}
	return out
}
