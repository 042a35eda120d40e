package tasks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/loader"
	variables "github.com/compose-spec/compose-go/v2/template"
	"github.com/compose-spec/compose-go/v2/types"
	"go.yaml.in/yaml/v4"

	"github.com/turngate/turngate/schema"
)

// composeName is the only name that a compose file may have. Harbor reads the
// same name.
const composeName = "docker-compose.yaml"

// The compose file is read as if the task's folder had the path composeTask,
// which exists on no machine. So a path in the file means the same everywhere
// and never refers to the submitter's disk.
const (
	composeUp2  = "/.task/up2"
	composeUp1  = composeUp2 + "/up1"
	composeTask = composeUp1 + "/task"
)

// mainImage is the name under which a compose file refers to the image that is
// built from environment/Dockerfile.
const mainImage = "turngate-main"

// composer turns a compose file into parts of a request.
type composer struct {
	t       *Task
	files   folder // of the task
	home    string // the folder of the compose file: environment, or tests for a separate verifier
	lookup  func(string) (string, bool)
	sandbox *schema.SandboxChoice
	project *types.Project

	sources map[string]string // source of a bind or volume → name of its folder
	aliases map[string][]string
	cpus    map[string]float64 // limits that the file gives
	pids    map[string]int64
	memory  map[string]int64
}

// composeFolder is the folder of a compose file as the file sees it.
func (c *composer) composeFolder() string { return composeTask + "/" + c.home }

// compose reads the compose file in a folder of the task into a sandbox of the
// request.
func (t *Task) compose(home string, sandbox *schema.SandboxChoice) {
	c := &composer{t: t, files: folder{t.abs}, home: home, sandbox: sandbox, sources: map[string]string{}, aliases: map[string][]string{}, cpus: map[string]float64{}, memory: map[string]int64{}, pids: map[string]int64{}}
	raw, ok := c.read()
	if !ok {
		return
	}
	c.lookup = c.variables(raw)
	model, project, err := c.load(raw)
	if err != nil {
		c.bad("", "", err.Error())
		return
	}
	c.project = project
	before := len(t.problems)
	c.refuse(model)
	c.fill()
	// The schema's own checks, such as the form of a service's name.
	var invalid *schema.InvalidError
	if err := sandbox.Validate(); errors.As(err, &invalid) && len(t.problems) == before {
		c.bad(strings.TrimPrefix(invalid.Field, "sandbox."), invalid.Value, invalid.Want)
	}
}

// bad reports an error at a key of the compose file.
func (c *composer) bad(key string, value any, why string) {
	field := c.home + "/" + composeName
	if key != "" {
		field += ": " + key
		why = fmt.Sprintf("%s: %s", show(value), why)
	}
	c.t.problem(&Error{c.t.Dir, field, why})
}

// show formats a value as one short line.
func show(v any) string {
	if v == nil {
		return "null"
	}
	text := strings.Join(strings.Fields(fmt.Sprint(v)), " ")
	return strconv.Quote(schema.Clip(text, 200))
}

// note adds a note to the result about a part of the file that takes effect in
// another way, or not at all.
func (c *composer) note(format string, args ...any) {
	c.t.note(schema.Clip("docker-compose.yaml: "+fmt.Sprintf(format, args...), 1000))
}

// read returns the text of the compose file. It refuses the keys that make the
// loader open other files.
func (c *composer) read() ([]byte, bool) {
	data, err := c.open(c.composeFolder() + "/" + composeName)
	if err != nil {
		c.bad("", "", reason(err))
		return nil, false
	}
	var tree any
	if err := yaml.Unmarshal(data, &tree); err != nil {
		c.bad("", "", err.Error())
		return nil, false
	}
	top, ok := tree.(map[string]any)
	if !ok && tree != nil {
		c.bad("", "", show(tree)+": want fields with texts as names, such as services")
		return nil, false
	}
	services, ok := top["services"].(map[string]any)
	if !ok && top["services"] != nil {
		c.bad("services", top["services"], "want services with texts as names")
		return nil, false
	}
	ok = true
	if top["include"] != nil {
		c.bad("include", top["include"], "other compose files are not read; write their services into this one")
		ok = false
	}
	for name, s := range services {
		service, is := s.(map[string]any)
		if !is && s != nil {
			c.bad("services."+name, s, "want fields with texts as names, such as image")
			ok = false
		}
		if e, is := service["extends"].(map[string]any); is && e["file"] != nil {
			c.bad("services."+name+".extends.file", e["file"], "other compose files are not read; extend a service of this one")
			ok = false
		}
	}
	return data, ok
}

// open reads a file of the task. at is its path in the compose file.
func (c *composer) open(at string) ([]byte, error) {
	rel, ok := inTask(at)
	if !ok {
		return nil, errors.New("it is outside the task's folder")
	}
	return c.files.read(rel, maxConfigFile)
}

// inTask returns the path relative to the task's folder, and whether the path
// is inside that folder.
func inTask(at string) (string, bool) {
	at = path.Clean(at)
	if at == composeTask {
		return ".", true
	}
	return strings.CutPrefix(at, composeTask+"/")
}

var plainVariable = regexp.MustCompile(`\$\$|\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)`)

// variables returns the lookup of the variables that the file may use: first Harbor's, then the
// task's, then the submitter's, then the file .env beside it.
func (c *composer) variables(raw []byte) func(string) (string, bool) {
	s := c.sandbox
	own := map[string]string{
		"MAIN_IMAGE_NAME": mainImage, "CONTEXT_DIR": c.composeFolder(),
		"CPUS":   strconv.FormatFloat(s.CPUs, 'f', -1, 64),
		"MEMORY": strconv.FormatInt(s.MemoryBytes>>20, 10) + "M",
	}
	if s.Image != "" {
		own["PREBUILT_IMAGE_NAME"] = s.Image
	}
	for name, dir := range logFolders() {
		own["HOST_"+name+"_PATH"], own["ENV_"+name+"_PATH"] = dir, dir
	}
	var file map[string]string
	if data, err := c.open(c.composeFolder() + "/.env"); err == nil {
		if file, err = dotenv.ParseWithLookup(strings.NewReader(string(data)), nil); err != nil {
			c.bad(".env", "", err.Error())
		}
	}
	lookup := func(name string) (string, bool) {
		if v, ok := own[name]; ok {
			return v, true
		}
		if v, ok := s.Env[name]; ok {
			return v, true
		}
		if v, ok := c.t.env[name]; ok {
			return v, true
		}
		v, ok := file[name]
		if !ok {
			c.t.miss(name, c.home+"/"+composeName, false)
		}
		return v, ok
	}
	for _, m := range plainVariable.FindAllSubmatch(raw, -1) {
		name := cmp.Or(string(m[1]), string(m[2]))
		if _, ok := lookup(name); name != "" && !ok {
			c.empty(name)
		}
	}
	return lookup
}

// empty records a variable that the submitter did not give and that has no
// default.
func (c *composer) empty(name string) { c.t.miss(name, c.home+"/"+composeName, true) }

// logFolders maps the names of variables to the log folders, which exist in
// every sandbox.
func logFolders() map[string]string {
	return map[string]string{"VERIFIER_LOGS": VerifierDir, "AGENT_LOGS": "/logs/agent", "ARTIFACTS": "/logs/artifacts"}
}

// obsolete matches the version key. It has no effect, but the loader would log
// a warning about it.
var obsolete = regexp.MustCompile(`(?m)^version:.*$`)

// sealed refuses every file that the loader wants to open.
type sealed struct{}

func (sealed) Accept(string) bool { return true }
func (sealed) Load(_ context.Context, p string) (string, error) {
	return "", fmt.Errorf("%s: files outside the task are not read", p)
}
func (sealed) Dir(p string) string { return filepath.Dir(p) }

// load returns the file with variables, anchors and defaults filled in, both as
// a tree and as a project.
func (c *composer) load(raw []byte) (map[string]any, *types.Project, error) {
	raw = obsolete.ReplaceAll(raw, nil)
	base := "services: {main: {command: [sh, -c, sleep infinity]}}\n"
	details := func() types.ConfigDetails {
		return types.ConfigDetails{
			WorkingDir:  c.composeFolder(),
			ConfigFiles: []types.ConfigFile{{Filename: "base.yaml", Content: []byte(base)}, {Filename: "docker-compose.yaml", Content: raw}},
			Environment: types.Mapping{},
		}
	}
	options := func(o *loader.Options) {
		o.SetProjectName("task", true)
		o.SkipNormalization = true // it asks the environment for build arguments
		o.ResolvePaths, o.SkipInclude, o.SkipResolveEnvironment, o.SkipResolveLabels, o.SkipConsistencyCheck = true, true, true, true, true
		o.ResourceLoaders = []loader.ResourceLoader{sealed{}}
		o.Interpolate.LookupValue = c.lookup
		o.Interpolate.Substitute = func(text string, m variables.Mapping) (string, error) {
			return variables.SubstituteWithOptions(text, m, variables.WithoutLogging)
		}
	}
	model, err := loader.LoadModelWithContext(context.Background(), details(), options)
	if err != nil {
		return nil, nil, err
	}
	project, err := loader.LoadWithContext(context.Background(), details(), options)
	return model, project, err
}

func reason(err error) string {
	if errors.Is(err, os.ErrNotExist) {
		return "it is missing"
	}
	return err.Error()
}
