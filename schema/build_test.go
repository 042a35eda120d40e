package schema_test

import (
	"errors"
	"testing"

	"github.com/turngate/turngate/schema"
)

func TestABuildStaysInItsBundle(t *testing.T) {
	for field, b := range map[string]schema.Build{
		"sandbox.build.context":    {Context: "../other"},
		"sandbox.build.dockerfile": {Dockerfile: "/etc/passwd"},
		"sandbox.build.args":       {Args: map[string]string{"A=B": "1"}},
	} {
		r := schema.Request{ID: "alpha-1", Trainer: "alpha", Task: schema.Task{Name: "t"}, Agent: schema.AgentChoice{Name: "nop"}, Sandbox: schema.SandboxChoice{Backend: "docker", Build: &b}}
		var bad *schema.InvalidError
		if err := schema.Validate(&r); !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("want %s refused, got %v", field, err)
		}
	}
	b := &schema.Build{}
	r := schema.Request{Sandbox: schema.SandboxChoice{Build: b}}.WithDefaults()
	if d := r.Sandbox.Build; d.Context != "environment" || d.Dockerfile != "Dockerfile" || b.Context != "" {
		t.Errorf("defaults %+v, of %+v", d, b)
	}
}
