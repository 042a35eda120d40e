package console

import (
	"reflect"
	"testing"

	"github.com/turngate/turngate/jobs"
)

func TestPathsOfTheHostAreReplaced(t *testing.T) {
	const home = "/home/me"
	t.Setenv("HOME", home)
	h := hostPathsOf("/srv/jobs/first", &jobs.Plan{
		State: "/var/tmp/turngate-run-1", Flags: map[string][]string{"trainer": {"replay:/etc/me/answers.yaml"}, "agents": {"/opt/me/agents"}, "network": {"none"}},
		Trials: []jobs.Trial{{Task: "org/hello", Dir: "/data/tasks/hello"}},
	})
	for text, want := range map[string]string{
		"open /srv/jobs/first/t__a/result.json: no":   "open first/t__a/result.json: no",
		"task /data/tasks/hello was changed":          "task org/hello was changed",
		"/data/tasks/hello-2 and x/data/tasks/hello":  ".../hello-2 and x/data/tasks/hello",
		"at /srv/jobs, /srv/jobs2":                    "at ..., /srv/jobs2",
		"/etc/me/answers.yaml: bad":                   "answers.yaml: bad",
		"(/opt/me/agents) in /var/tmp/turngate-run-1": "(agents) in state",
		"/tests/test.sh and /tmp/x stay":              "/tests/test.sh and /tmp/x stay",
	} {
		got := h.value(map[string]any{"text": text, "new": []any{map[string]any{"text": text}}}, "")
		if all := map[string]any{"text": want, "new": []any{map[string]any{"text": want}}}; !reflect.DeepEqual(got, all) {
			t.Errorf("%q: %v", text, got)
		}
	}
	got := h.value(map[string]any{"missing": "open " + home + "/x: no", "output": home + "/x"}, "")
	if want := map[string]any{"missing": "open ~/x: no", "output": home + "/x"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
}
