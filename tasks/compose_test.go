package tasks_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
)

// composed loads a task with this compose file and a Dockerfile.
func composed(t testing.TB, file string, more map[string]string) (*tasks.Task, error) {
	files := map[string]string{
		"instruction.md": "x", "environment/Dockerfile": "FROM debian:12\n", "environment/docker-compose.yaml": file,
		"environment/init.sql": "select 1;", "environment/data/a.txt": "a", "environment/db.env": "POSTGRES_USER=app\nPOSTGRES_DB=${NAME}\n",
		"environment/api/Dockerfile": "FROM debian:12\n", "tests/test.sh": "true",
	}
	for k, v := range more {
		files[k] = v
	}
	dir := write(t, t.TempDir(), files)
	return tasks.Load(dir, tasks.Options{Env: map[string]string{"NAME": "shop"}})
}

// The compose files here have the forms of published tasks.
func TestAComposeFileOfOneServiceIsAPlainContainer(t *testing.T) {
	task, err := composed(t, `services:
  main:
    build:
      context: ${CONTEXT_DIR}
    image: ${MAIN_IMAGE_NAME}
    command: [ "sh", "-c", "sleep infinity" ]
    environment:
      - TEST_DIR=${TEST_DIR}
      - PROXY=${http_proxy:-}
    volumes:
      - ${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}
      - ${HOST_AGENT_LOGS_PATH}:${ENV_AGENT_LOGS_PATH}
      - ${CONTEXT_DIR}/../..:/shared
      - ./data:/data:ro
      - ./init.sql:/init.sql
    deploy:
      resources:
        limits:
          cpus: ${CPUS}
          memory: ${MEMORY}
`, map[string]string{"task.toml": "[environment]\ncpus = 2\nmemory_mb = 4096\n"})
	if err != nil {
		t.Fatal(err)
	}
	s := task.Request.Sandbox
	if s.Build == nil || s.Build.Context != "environment" || s.Image != "" || s.CPUs != 2 || s.MemoryBytes != 4096<<20 || len(s.Services) != 0 {
		t.Errorf("got %+v", s)
	}
	if !slices.Equal(s.Container.Command, schema.IdleCommand()) || s.Env["TEST_DIR"] != "" || s.Env["PROXY"] != "" || len(s.Env) != 2 {
		t.Errorf("command %q, env %q", s.Container.Command, s.Env)
	}
	wantFolders := []schema.Folder{{Name: "shared", Keep: true}, {Name: "data", From: "environment/data"}}
	wantMounts := []schema.Mount{{Folder: "shared", Path: "/shared"}, {Folder: "data", Path: "/data", ReadOnly: true}}
	if !slices.Equal(s.Folders, wantFolders) || !slices.Equal(s.Container.Mounts, wantMounts) {
		t.Errorf("folders %+v, mounts %+v", s.Folders, s.Container.Mounts)
	}
	if f := s.Container.Files; len(f) != 1 || f[0].Path != "/init.sql" || f[0].From != "environment/init.sql" {
		t.Errorf("files %+v", f)
	}
	notes := strings.Join(task.Request.Task.Notes, "\n")
	if !strings.Contains(notes, "so they are empty: TEST_DIR") || strings.Contains(notes, "http_proxy") || !strings.Contains(notes, "/shared is an empty folder") {
		t.Errorf("notes:\n%s", notes)
	}
	valid(t, task)
}

func valid(t testing.TB, task *tasks.Task) {
	t.Helper()
	r := task.Request
	r.ID, r.Trainer, r.Agent.Name, r.Sandbox.Backend = "a-1", "a", "mini", "docker"
	r = r.WithDefaults()
	if err := schema.Validate(&r); err != nil {
		t.Error(err)
	}
}

// shop is a compose file with side-cars of many forms.
const shop = `version: "3.8"
x-common: &common
  restart: unless-stopped
services:
  main:
    depends_on:
      db: {condition: service_healthy}
      migrate: {condition: service_completed_successfully}
      cache: {condition: service_started, required: false}
    environment: {DB_URL: "postgres://app@db/${NAME}"}
    command: ["bash", "-lc", "/app/setup.py && sleep infinity"]
    links: ["db:database"]
  db:
    <<: *common
    image: postgres:16-alpine
    container_name: shop_db
    env_file: [./db.env]
    environment:
      POSTGRES_PASSWORD: secret
      NAME:
      MISSING:
    volumes:
      - pgdata:/var/lib/postgresql/data
      - ./init.sql:/docker-entrypoint-initdb.d/init.sql:ro
    healthcheck:
      test: ["CMD-SHELL", "pg_isready -U app"]
      interval: 2s
      timeout: 3s
      retries: 7
      start_period: 10s
    expose: ["5432"]
    shm_size: 256m
    tmpfs: ["/run:size=16m,mode=755"]
    ulimits: {nofile: {soft: 1024, hard: 2048}, nproc: 99}
    mem_limit: 512m
    pids_limit: 99
    networks:
      back: {aliases: [pg]}
  cache:
    image: redis:7
    command: redis-server --requirepass "a b"
    read_only: true
    networks: [back]
  migrate:
    build: {context: ./api, args: {VERSION: "1", NAME: }, target: run}
    entrypoint: /migrate
    depends_on: [db]
    configs: [{source: app, target: /etc/app.conf}]
    secrets: [key]
volumes: {pgdata: {}}
networks: {back: {internal: true}}
configs: {app: {content: "mode=test"}}
secrets: {key: {file: ./data/a.txt}}
`

func TestSideCarsOfAComposeFile(t *testing.T) {
	task, err := composed(t, shop, map[string]string{"task.toml": "[environment]\nmemory_mb = 2048\nenv = {DB_URL = \"mine\"}\n"})
	if err != nil {
		t.Fatal(err)
	}
	valid(t, task)
	s := task.Request.Sandbox
	by := map[string]schema.Service{}
	for _, one := range s.Services {
		by[one.Name] = one
	}
	db, cache, migrate := by["db"], by["cache"], by["migrate"]
	if s.Env["DB_URL"] != "mine" || len(s.Container.After) != 3 || s.MemoryBytes != (2048+512+1024+1024)<<20 || db.MemoryBytes != 512<<20 {
		t.Errorf("main %+v", s)
	}
	if db.Env["POSTGRES_USER"] != "app" || db.Env["POSTGRES_DB"] != "shop" || db.Env["NAME"] != "shop" || len(db.Env) != 4 || db.Restart != schema.RestartAlways ||
		!slices.Equal(db.Aliases, []string{"database", "pg", "shop_db"}) {
		t.Errorf("db %+v", db)
	}
	if s.Pids != 0 || db.Pids != 99 || cache.Pids != 0 {
		t.Errorf("pids %d, of db %d, of cache %d", s.Pids, db.Pids, cache.Pids)
	}
	if h := db.Container.Health; h == nil || h.Test[2] != "pg_isready -U app" || h.IntervalMS != 2000 || h.Retries != 7 || h.StartMS != 10_000 {
		t.Errorf("health %+v", h)
	}
	if c := db.Container; c.ShmBytes != 256<<20 || c.Tmpfs[0] != (schema.Tmpfs{Path: "/run", SizeBytes: 16 << 20, Mode: 0o755}) || c.Ulimits[1] != (schema.Ulimit{Name: "nproc", Soft: 99, Hard: 99}) ||
		c.Mounts[0].Folder != "pgdata" || c.Files[0].Path != "/docker-entrypoint-initdb.d/init.sql" {
		t.Errorf("db %+v", c)
	}
	if !slices.Equal(cache.Container.Command, []string{"redis-server", "--requirepass", "a b"}) {
		t.Errorf("cache %q", cache.Container.Command)
	}
	if b := migrate.Build; b == nil || b.Context != "environment/api" || b.Target != "run" || b.Args["NAME"] != "shop" || migrate.Container.Entrypoint[0] != "/migrate" {
		t.Errorf("migrate %+v", migrate)
	}
	if f := migrate.Container.Files; len(f) != 2 || string(f[0].Content) != "mode=test" || f[1].Path != "/run/secrets/key" || f[1].From != "environment/data/a.txt" {
		t.Errorf("files %+v", f)
	}
	if s.Folders[0] != (schema.Folder{Name: "pgdata", Seed: true}) {
		t.Errorf("folders %+v", s.Folders)
	}
}

// TestServicesThatTheFileKeepsApart: a rollout has one network, and the result
// names the services that can reach each other only for this reason.
func TestServicesThatTheFileKeepsApart(t *testing.T) {
	task, err := composed(t, `services:
  main: {networks: [front]}
  api: {image: a, networks: [front, back]}
  db: {image: b, networks: [back]}
  alone: {image: c, network_mode: none}
networks: {front: {}, back: {}}
`, nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range task.Request.Task.Notes {
		if _, rest, ok := strings.Cut(n, "services "); ok {
			got = append(got, rest)
		}
	}
	if len(got) != 1 || !strings.HasPrefix(got[0], "db and main can reach each other") {
		t.Errorf("notes %q", task.Request.Task.Notes)
	}
	if task, err = composed(t, shop, nil); err != nil || !strings.Contains(strings.Join(task.Request.Task.Notes, "\n"), "services db and main can reach each other") {
		t.Errorf("%v, %v", task, err)
	}
}

// TestAllOfAHostileFileIsRefused: one attempt names each key that must go.
func TestAllOfAHostileFileIsRefused(t *testing.T) {
	_, err := composed(t, "services:\n  main:\n    network_mode: host\n    devices: [/dev/kvm]\n    cap_add: [SYS_ADMIN]\n    privileged: true\n    volumes: ['/etc:/host']\n", nil)
	for _, key := range []string{"network_mode", "devices", "cap_add", "privileged", "volumes[0].source"} {
		if err == nil || !strings.Contains(err.Error(), "services.main."+key+":") {
			t.Errorf("%s is not in %v", key, err)
		}
	}
}

func TestHostileComposeFilesAreRefusedByName(t *testing.T) {
	host, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []struct{ key, yaml, value string }{
		{"volumes[0].source", "volumes: ['/etc:/mnt']", "/etc"},
		{"volumes[0].source", "volumes: ['/var/run/docker.sock:/var/run/docker.sock']", "docker.sock"},
		{"volumes[0].source", "volumes: ['~/.ssh:/mnt']", host},
		{"volumes[0].source", "volumes: ['../../../..:/mnt']", "/"},
		{"volumes[0].source", "volumes: [{type: bind, source: /, target: /mnt}]", "/"},
		{"volumes[0].source", "volumes: ['${CONTEXT_DIR}/../../../../etc:/mnt']", "etc"},
		{"volumes[0].source", "volumes: ['./out:/mnt']", "out"},
		{"volumes[0].target", "volumes: ['./data:/proc/x']", "/proc/x"},
		{"volumes[0].target", "volumes: ['./data:/']", "/"},
		{"volumes[0].type", "volumes: [{type: npipe, source: a, target: /b}]", "npipe"},
		{"privileged", "privileged: true", "true"}, {"network_mode", "network_mode: host", "host"},
		{"network_mode", "network_mode: 'container:other'", "container:other"}, {"network_mode", "network_mode: 'service:db'", "service:db"},
		{"pid", "pid: host", "host"}, {"ipc", "ipc: host", "host"}, {"uts", "uts: host", "host"}, {"userns_mode", "userns_mode: host", "host"},
		{"cgroup", "cgroup: host", "host"}, {"cgroup_parent", "cgroup_parent: /x", "/x"},
		{"devices", "devices: ['/dev/kvm:/dev/kvm']", "/dev/kvm"}, {"device_cgroup_rules", "device_cgroup_rules: ['c 1:3 mr']", "c 1:3 mr"},
		{"gpus", "gpus: all", ""}, {"cap_add", "cap_add: [SYS_ADMIN]", "SYS_ADMIN"}, {"cap_add", "cap_add: [NET_RAW]", "NET_RAW"},
		{"security_opt", "security_opt: ['seccomp=unconfined']", "unconfined"}, {"ports", "ports: ['5432:5432']", "5432"},
		{"sysctls", "sysctls: {net.ipv4.ip_forward: 1}", "ip_forward"}, {"runtime", "runtime: runsc", "runsc"},
		{"volumes_from", "volumes_from: ['container:x']", "container:x"}, {"use_api_socket", "use_api_socket: true", "true"},
		{"env_file", "env_file: [/etc/passwd]", "/etc/passwd"}, {"env_file", "env_file: [../../../x.env]", "x.env"},
		{"deploy.resources.reservations.devices", "deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 1, capabilities: [gpu]}]}}}", "nvidia"},
		{"deploy.replicas", "deploy: {replicas: 3}", "3"}, {"label_file", "label_file: /etc/passwd", "/etc/passwd"},
		{"build.network", "build: {context: ., network: host}", "host"}, {"build.ssh", "build: {context: ., ssh: [default]}", "default"},
		{"build.secrets", "build: {context: ., secrets: [x]}", "x"}, {"build.entitlements", "build: {context: ., entitlements: [network.host]}", "network.host"},
		{"build.privileged", "build: {context: ., privileged: true}", "true"}, {"build.additional_contexts", "build: {context: ., additional_contexts: {x: /etc}}", "/etc"},
		{"build.context", "build: /etc", "/etc"}, {"build.context", "build: ..", "task"}, {"build.context", "build: 'https://example.com/x.git'", "example.com"},
		{"build.dockerfile", "build: {context: ., dockerfile: ../../x}", "x"},
		{"extends.file", "extends: {file: /etc/passwd, service: x}", "/etc/passwd"},
		{"networks.default", "networks: {default: {ipv4_address: 10.0.0.1}}", "10.0.0.1"},
		{"post_start", "post_start: [{command: id, privileged: true}]", "id"},
		{"ulimits", "ulimits: {rtprio: 9}", "rtprio"},
	} {
		check(t, "services.main."+line.key, line.value, "services:\n  main:\n    "+line.yaml+"\n")
	}
	for key, file := range map[string]string{
		"include":                 "include: [/etc/passwd]\nservices: {main: {}}\n",
		"networks.x.external":     "services: {main: {}}\nnetworks: {x: {external: true}}\n",
		"networks.x.driver":       "services: {main: {}}\nnetworks: {x: {driver: macvlan}}\n",
		"volumes.x.external":      "services: {main: {}}\nvolumes: {x: {external: true}}\n",
		"volumes.x.driver_opts":   "services: {main: {}}\nvolumes: {x: {driver_opts: {type: none, device: /etc, o: bind}}}\n",
		"secrets.x.external":      "services: {main: {}}\nsecrets: {x: {external: true}}\n",
		"services.main.secrets":   "services: {main: {secrets: [x]}}\nsecrets: {x: {file: /etc/shadow}}\n",
		"services.main.configs":   "services: {main: {configs: [x]}}\nconfigs: {x: {file: ../../../etc/hosts}}\n",
		"services.db.healthcheck": "services: {main: {depends_on: {db: {condition: service_healthy}}}, db: {image: x, healthcheck: {disable: true}}}\n",
		"services.db.image":       "services: {main: {}, db: {command: x}}\n",
		"services.db.privileged":  "services: {main: {}, db: {image: x, privileged: true}}\n",
	} {
		check(t, key, "", file)
	}
}

// TestLimitsOfProcesses reads pids_limit and its newer form.
func TestLimitsOfProcesses(t *testing.T) {
	for file, want := range map[string][2]int64{ // of the rollout and of the side-car
		"services: {main: {}, db: {image: x, deploy: {resources: {limits: {pids: 70}}}}}":                      {0, 70},
		"services: {main: {pids_limit: 50}, db: {image: x}}":                                                   {50 + 1024, 1024},
		"services: {main: {pids_limit: 50}, db: {image: x, pids_limit: 8}}":                                    {58, 8},
		"services: {main: {deploy: {resources: {limits: {pids: 9000}}}}, db: {image: x, pids_limit: -1}}":      {4096, 1024},
		"services: {main: {pids_limit: -1}, db: {image: x, pids_limit: 100000}}":                               {0, 4096},
		"services: {main: {deploy: {resources: {limits: {pids: 20}}}}, db: {image: x, deploy: {replicas: 1}}}": {20 + 1024, 1024},
	} {
		task, err := tasks.Load(write(t, t.TempDir(), map[string]string{"instruction.md": "x", "environment/Dockerfile": "FROM x", "environment/docker-compose.yaml": file}), tasks.Options{})
		if err != nil {
			t.Fatal(err)
		}
		valid(t, task)
		if s := task.Request.Sandbox; s.Pids != want[0] || s.Services[0].Pids != want[1] {
			t.Errorf("%s: %d and %d, want %v", file, s.Pids, s.Services[0].Pids, want)
		}
	}
}

func check(t *testing.T, key, value, file string) {
	t.Helper()
	dir := write(t, t.TempDir(), map[string]string{"instruction.md": "x", "environment/Dockerfile": "FROM x", "environment/docker-compose.yaml": file, "environment/data/a": ""})
	if err := os.Symlink("/etc", filepath.Join(dir, "environment", "out")); err != nil {
		t.Fatal(err)
	}
	_, err := tasks.Load(dir, tasks.Options{})
	var bad *tasks.Error
	if !errors.As(err, &bad) {
		t.Errorf("%s was taken: %v", strings.TrimSpace(file), err)
		return
	}
	if text := err.Error(); !strings.Contains(text, key) || !strings.Contains(text, value) {
		t.Errorf("%s: got %s, want %s and %q", strings.TrimSpace(file), text, key, value)
	}
}

func FuzzCompose(f *testing.F) {
	f.Add("services: {main: {}, db: {image: x, volumes: ['a:/b', './c:/d', '../..:/e']}}")
	f.Add("services:\n  main: &a\n    environment: {A: $A}\n  b: *a\n")
	dir := write(f, f.TempDir(), map[string]string{"instruction.md": "x", "environment/Dockerfile": "FROM x"})
	f.Fuzz(func(t *testing.T, file string) {
		if err := os.WriteFile(filepath.Join(dir, "environment", "docker-compose.yaml"), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		if task, err := tasks.Load(dir, tasks.Options{}); err == nil {
			valid(t, task)
		}
	})
}

// TestASeparateVerifierMayHaveSideCars reads the compose file of a verifier's
// own environment, which changes nothing for the agent.
func TestASeparateVerifierMayHaveSideCars(t *testing.T) {
	dir := write(t, t.TempDir(), map[string]string{
		"instruction.md": "x", "environment/Dockerfile": "FROM debian:12\n", "tests/Dockerfile": "FROM debian:12\n", "tests/test.sh": "true", "tests/judge/Dockerfile": "FROM debian:12\n",
		"task.toml":                 "artifacts = [\"/app\"]\n[verifier]\nenvironment_mode = \"separate\"\n",
		"tests/docker-compose.yaml": "services:\n  main: {depends_on: [judge]}\n  judge: {build: ./judge, volumes: [\"./data:/data\"]}\n",
		"tests/data/answers":        "42",
	})
	task, err := tasks.Load(dir, tasks.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if s := task.Request.Sandbox; len(s.Services) != 0 || s.Build == nil || s.Build.Context != "" {
		t.Errorf("the agent's sandbox is %+v", s)
	}
	v := task.Request.Verify
	if v == nil || v.Separate == nil || !v.Bundled || v.Separate.Build == nil || v.Separate.Build.Context != "tests" || len(v.Separate.Services) != 1 {
		t.Fatalf("got %+v", v)
	}
	judge := v.Separate.Services[0]
	if judge.Name != "judge" || judge.Build == nil || judge.Build.Context != "tests/judge" || len(v.Separate.Folders) != 1 || v.Separate.Folders[0].From != "tests/data" {
		t.Errorf("the side-car is %+v, folders %+v", judge, v.Separate.Folders)
	}
	hostile := write(t, t.TempDir(), map[string]string{
		"instruction.md": "x", "tests/test.sh": "true", "task.toml": "artifacts = [\"/app\"]\n[environment]\ndocker_image = \"debian:12\"\n[verifier]\nenvironment_mode = \"separate\"\n",
		"tests/docker-compose.yaml": "services: {main: {image: x, privileged: true}}\n",
	})
	if _, err := tasks.Load(hostile, tasks.Options{}); err == nil || !strings.Contains(err.Error(), "tests/docker-compose.yaml: services.main.privileged") {
		t.Errorf("a hostile file: %v", err)
	}
}

// The agent's side-cars come with the agent's image, and not with an image of
// the verifier's own.
func TestSideCarsComeWithTheImage(t *testing.T) {
	compose := "services:\n  main:\n    image: base\n    volumes: ['data:/data']\n  db:\n    image: db\nvolumes:\n  data: {}\n"
	for name, c := range map[string]struct {
		toml, file string
		services   int
	}{
		"the agent's image":        {toml: "[verifier]\nenvironment_mode = 'separate'", services: 1},
		"settings without image":   {toml: "[verifier.environment]\ncpus = 1", services: 1},
		"an image":                 {toml: "[verifier.environment]\ndocker_image = 'own'"},
		"a Dockerfile":             {toml: "[verifier]\nenvironment_mode = 'separate'", file: "tests/Dockerfile"},
		"settings with Dockerfile": {toml: "[verifier.environment]\ncpus = 1", file: "tests/Dockerfile"},
	} {
		t.Run(name, func(t *testing.T) {
			files := map[string]string{"task.toml": c.toml, "instruction.md": "x", "tests/test.sh": "true", "environment/docker-compose.yaml": compose}
			if c.file != "" {
				files[c.file] = "FROM x"
			}
			task, err := tasks.Load(write(t, t.TempDir(), files), tasks.Options{})
			if err != nil {
				t.Fatal(err)
			}
			s := task.Request.Verify.Separate
			if s == nil || len(s.Services) != c.services || len(s.Folders) != c.services || len(s.Container.Mounts) != c.services {
				t.Fatalf("got %+v", s)
			}
			if task.Request.Limits.InstallMS != 600_000 {
				t.Errorf("got %d ms for a build", task.Request.Limits.InstallMS)
			}
		})
	}
}

// TestAComposeFileOfAnotherFormIsNamed: the error has no type of this program.
func TestAComposeFileOfAnotherFormIsNamed(t *testing.T) {
	for file, want := range map[string]string{
		"- a\n":                       `docker-compose.yaml: "[a]": want fields with texts as names`,
		"services: [a]\n":             `docker-compose.yaml: services: "[a]": want services with texts as names`,
		"services: {1: {image: x}}\n": "services: ",
		"services: {main: x}\n":       `docker-compose.yaml: services.main: "x": want fields`,
		"services: {main: {extends: {file: x}}}\n": "services.main.extends.file",
	} {
		if _, err := composed(t, file, nil); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "interface") {
			t.Errorf("%s: %v, want %q", file, err, want)
		}
	}
}
