package console

import (
	"net/http"

	"github.com/turngate/turngate/internal/compare"
	"github.com/turngate/turngate/internal/plain"
	"github.com/turngate/turngate/jobs/recorded"
	"github.com/turngate/turngate/trainer"
	"github.com/turngate/turngate/trajectory"
)

// Group is the rollouts of a group side by side.
type Group struct {
	Trainer string `json:"trainer"`
	Group   string `json:"group"`
	Task    string `json:"task,omitempty"`
	// Mean and Deviation describe the rewards to train on; null: none is known.
	Mean      *float64 `json:"mean"`
	Deviation *float64 `json:"deviation"`
	Members   []Member `json:"members"`
}

// Member is a rollout of a group.
type Member struct {
	Row
	// Advantage is the distance of the reward from the group's mean, in standard
	// deviations if they are not 0. Null: a trainer does not train on the rollout, or its
	// reward is not known.
	Advantage *float64 `json:"advantage"`
}

// groupOf compares the rollouts of a group, as trainers do.
func groupOf(id, group string, rows []Row) Group {
	out := Group{Trainer: id, Group: group, Members: []Member{}}
	rewards := make([]*float64, len(rows))
	for i := range rows {
		out.Task = rows[i].Task
		if rows[i].Use == string(trainer.Train) {
			rewards[i] = rows[i].Reward
		}
	}
	mean, deviation, advantages := compare.Advantages(rewards)
	out.Mean, out.Deviation = mean, deviation
	for i := range rows {
		out.Members = append(out.Members, Member{rows[i], advantages[i]})
	}
	return out
}

// group answers with the rollouts of the group that the request names.
func (s *Server) group(w http.ResponseWriter, r *http.Request) {
	s.watched()
	id, group := r.URL.Query().Get("trainer"), r.URL.Query().Get("group")
	writeJSON(w, groupOf(id, group, s.table.group(id, group)))
}

// Versions are the policy versions that answered a rollout's calls, in the order of
// their first answers.
type Versions struct {
	Versions []string `json:"versions"`
	Missing  string   `json:"missing,omitempty"` // the reason for which they are not known
}

// maxVersions is the largest number of versions that are listed.
const maxVersions = 50

// versions answers with the policy versions of a rollout.
func (s *Server) versions(w http.ResponseWriter, r *http.Request) {
	found := s.find(w, r)
	if found == nil {
		return
	}
	t, err := s.read(r.Context(), found)
	switch {
	case recorded.MayPass(err):
		http.Error(w, plain.Line(err.Error(), maxFault), http.StatusBadGateway)
	case err != nil:
		writeJSON(w, Versions{Versions: []string{}, Missing: plain.Line(err.Error(), maxFault)})
	default:
		writeJSON(w, versionsOf(t))
	}
}

func versionsOf(t *trajectory.Rollout) Versions {
	out := Versions{Versions: []string{}}
	for _, v := range t.Versions() {
		if len(out.Versions) < maxVersions {
			out.Versions = append(out.Versions, cell(v))
		}
	}
	return out
}
