package jobs

import (
	"slices"
	"strings"

	"github.com/turngate/turngate/schema"
)

// Variant is an agent with a model. Each task of a job runs with each of its
// variants.
type Variant struct {
	Agent string `json:"agent"`
	Model string `json:"model,omitempty"` // empty: the agent's only one
}

// Label returns the agent, and the model if it has a name.
func (v Variant) Label() string { return strings.TrimSpace(v.Agent + " " + v.Model) }

// Variants returns each agent with each model, or without one if there are none.
func Variants(agents, models []string) []Variant {
	if len(models) == 0 {
		models = []string{""}
	}
	var out []Variant
	for _, a := range agents {
		for _, m := range models {
			out = append(out, Variant{a, m})
		}
	}
	return out
}

// Agents returns the names of the agents, in the order of the variants.
func (p *Plan) Agents() []string {
	return namesOf(p.Variants, func(v Variant) string { return v.Agent })
}

// Models returns the names of the models, in the order of the variants.
func (p *Plan) Models() []string {
	return namesOf(p.Variants, func(v Variant) string { return v.Model })
}

func namesOf(list []Variant, name func(Variant) string) []string {
	out := []string{}
	for _, v := range list {
		if n := name(v); n != "" && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

func (p *Plan) checkVariants() error {
	if len(p.Variants) == 0 {
		return &schema.InvalidError{Field: "variants", Value: "none", Want: "want at least one agent"}
	}
	for i, v := range p.Variants {
		if v.Agent == "" || slices.Contains(p.Variants[:i], v) {
			return &schema.InvalidError{Field: "variants", Value: v.Label(), Want: "want the name of an agent, each agent and model once"}
		}
	}
	for _, t := range p.Trials {
		if !slices.Contains(p.Variants, t.Variant) {
			return &schema.InvalidError{Field: "trials", Value: t.Name, Want: "want one of the job's agents and models, and it has " + t.Label()}
		}
	}
	return nil
}
