package main_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/turngate/turngate/internal/testenv"
)

// TestAServerThatNoWorkerHasSeenIsShown: none of its streams exists yet, and each list is
// empty.
func TestAServerThatNoWorkerHasSeenIsShown(t *testing.T) {
	testenv.Slow(t)
	p, state := newPerson(t), t.TempDir()
	url := regexp.MustCompile(`nats://[0-9.:]+`).FindString(p.serves(t, "nats", "--state", state, "--port", "0"))
	as := func(who string) []string {
		return []string{"--nats", url, "--creds", filepath.Join(state, "creds", who+".nk")}
	}
	for _, tt := range []struct{ command, who, want string }{
		{"queue ls", "ops", "TRAINER"}, {"queue ls -o json", "ops", "[]"}, {"top --once", "ops", "workers   0 "}, {"dead ls", "ops", "SEQ"}, {"worker ls", "ops", "WORKER"},
		{"rollout ls", "ops", "ROLLOUT"}, {"rollout ls", "trainer-local", "ROLLOUT"}, {"group ls", "trainer-local", "GROUP"},
	} {
		got := p.turngate(t, append(strings.Fields(tt.command), as(tt.who)...)...)
		if got.code != 0 || !strings.Contains(got.out, tt.want) {
			t.Errorf("%s as %s: %+v", tt.command, tt.who, got)
		}
	}
}
