package schema_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
)

func withServices() schema.SandboxChoice {
	return schema.SandboxChoice{
		Backend: "docker", Image: "debian:12", MemoryBytes: 1 << 31,
		Container: schema.Container{
			Command: []string{"sh", "-c", "sleep infinity"}, Mounts: []schema.Mount{{Folder: "shared", Path: "/shared"}, {Folder: "data", Path: "/data", ReadOnly: true}},
			Tmpfs: []schema.Tmpfs{{Path: "/scratch", SizeBytes: 1 << 20, Mode: 0o1777}}, ShmBytes: 1 << 26, Hostname: "client",
			Hosts: []schema.HostAddress{{Name: "old-db", Address: "10.0.0.9"}}, Ulimits: []schema.Ulimit{{Name: "nofile", Soft: 1024, Hard: 4096}},
			After: []schema.After{{Service: "db", Condition: schema.AfterHealthy}, {Service: "init", Condition: schema.AfterCompleted}},
		},
		Services: []schema.Service{
			{
				Name: "db", Image: "postgres:16", User: "postgres", Workdir: "/var/lib/postgresql", Env: map[string]string{"POSTGRES_PASSWORD": "x"},
				Aliases: []string{"database"}, Restart: schema.RestartAlways, CPUs: 0.5, MemoryBytes: 1 << 29, Pids: 64,
				Container: schema.Container{
					Files:  []schema.File{{Path: "/docker-entrypoint-initdb.d/init.sql", From: "environment/init.sql"}, {Path: "/etc/x.conf", Content: []byte("x"), Mode: 0o400}},
					Health: &schema.Probe{Test: []string{"pg_isready"}, IntervalMS: 1000, TimeoutMS: 2000, StartMS: 3000, StartIntervalMS: 100, Retries: 5},
					After:  []schema.After{{Service: "init", Condition: schema.AfterStarted}},
				},
			},
			{Name: "init", Build: &schema.Build{Context: "environment/init"}, Container: schema.Container{Entrypoint: []string{"/init"}, Offline: true}},
		},
		Folders: []schema.Folder{{Name: "shared", Keep: true}, {Name: "data", From: "environment/data"}, {Name: "state", Seed: true}},
	}
}

func TestSideCarsHaveOneNetworkInAllPhases(t *testing.T) {
	r := requestWith(withServices())
	r.Sandbox.Network = schema.NetworkOpen
	if err := schema.Validate(r); err != nil {
		t.Fatal(err)
	}
	r.Verify = &schema.Verify{Run: "true", Network: schema.NetworkNone}
	var bad *schema.InvalidError
	if err := schema.Validate(r); !errors.As(err, &bad) || bad.Field != "sandbox.network" {
		t.Errorf("got %v", err)
	}
	r.Sandbox.Services = nil
	r.Sandbox.Container.After = nil
	if err := schema.Validate(r); err != nil {
		t.Error(err)
	}
}

func TestContainersAreCheckedByName(t *testing.T) {
	good := withServices()
	if err := schema.Validate(requestWith(good)); err != nil {
		t.Fatal(err)
	}
	service := func(change func(*schema.Service)) func(*schema.SandboxChoice) {
		return func(s *schema.SandboxChoice) { change(&s.Services[0]) }
	}
	for field, change := range map[string]func(*schema.SandboxChoice){
		"sandbox.services[0].name":                       service(func(s *schema.Service) { s.Name = "a b" }),
		"sandbox.services[1].name":                       func(s *schema.SandboxChoice) { s.Services[1].Name = "db" },
		"sandbox.services[0].image":                      service(func(s *schema.Service) { s.Image = "" }),
		"sandbox.services[0].aliases[0]":                 service(func(s *schema.Service) { s.Aliases[0] = "-x" }),
		"sandbox.services[0].restart":                    service(func(s *schema.Service) { s.Restart = "sometimes" }),
		"sandbox.services[0].memory_bytes":               service(func(s *schema.Service) { s.MemoryBytes = -1 }),
		"sandbox.services[0].env":                        service(func(s *schema.Service) { s.Env["A B"] = "1" }),
		"sandbox.services[0].container.files[0].from":    service(func(s *schema.Service) { s.Container.Files[0].From = "../../etc/shadow" }),
		"sandbox.services[0].container.files[1].path":    service(func(s *schema.Service) { s.Container.Files[1].Path = "/.turngate/turngate" }),
		"sandbox.services[0].container.files[1].mode":    service(func(s *schema.Service) { s.Container.Files[1].Mode = 0o10000 }),
		"sandbox.services[0].container.health.test":      service(func(s *schema.Service) { s.Container.Health.Test = nil }),
		"sandbox.services[0].container.after[0].service": service(func(s *schema.Service) { s.Container.After[0].Service = "nobody" }),
		"sandbox.services": func(s *schema.SandboxChoice) {
			s.Services[1].Container.After = []schema.After{{"db", schema.AfterStarted}}
		},
		"sandbox.container.after[0].condition": func(s *schema.SandboxChoice) { s.Container.After[0].Condition = "soon" },
		"sandbox.container.mounts[0].folder":   func(s *schema.SandboxChoice) { s.Container.Mounts[0].Folder = "nothing" },
		"sandbox.container.mounts[0].path":     func(s *schema.SandboxChoice) { s.Container.Mounts[0].Path = "/proc/sys" },
		"sandbox.container.mounts[1].path":     func(s *schema.SandboxChoice) { s.Container.Mounts[1].Path = "/shared" },
		"sandbox.container.tmpfs[0].path":      func(s *schema.SandboxChoice) { s.Container.Tmpfs[0].Path = "/" },
		"sandbox.container.hosts[0].address":   func(s *schema.SandboxChoice) { s.Container.Hosts[0].Address = "host-gateway" },
		"sandbox.container.ulimits[0].name":    func(s *schema.SandboxChoice) { s.Container.Ulimits[0].Name = "rtprio" },
		"sandbox.container.hostname":           func(s *schema.SandboxChoice) { s.Container.Hostname = strings.Repeat("x", 64) },
		"sandbox.folders[0].name":              func(s *schema.SandboxChoice) { s.Folders[0].Name = "../x" },
		"sandbox.folders[1].from":              func(s *schema.SandboxChoice) { s.Folders[1].From = "/etc" },
		"sandbox.folders[2].name":              func(s *schema.SandboxChoice) { s.Folders[2].Name = "data" },
		"sandbox.services[1].build.context":    func(s *schema.SandboxChoice) { s.Services[1].Build.Context = "/" },
	} {
		s := withServices()
		change(&s)
		var bad *schema.InvalidError
		if err := schema.Validate(requestWith(s)); !errors.As(err, &bad) || bad.Field != field {
			t.Errorf("%s: got %v", field, err)
		}
	}
}

func requestWith(s schema.SandboxChoice) *schema.Request {
	return &schema.Request{V: 1, ID: "alpha-1", Trainer: "alpha", Task: schema.Task{Name: "t", Instruction: "x"}, Agent: schema.AgentChoice{Name: "mini"}, Sandbox: s}
}
