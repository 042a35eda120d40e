package tasks

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// How a key of a service is handled.
const (
	keyUsed    = ""  // fill uses the key and checks its value
	keyDropped = "-" // the key has no effect that a task can see
)

// serviceKeys returns the known keys of a service. A value other than keyUsed
// and keyDropped refuses the key, and is the reason and the valid form. Unknown
// keys are refused too.
func serviceKeys() map[string]string {
	keys := map[string]string{
		"privileged":    "a container of a task has no rights on the host; leave it out",
		"pid":           "a container has its own process namespace; leave it out",
		"ipc":           "a container has its own shared memory; leave it out, or set shm_size",
		"uts":           "a container has its own host name; leave it out, or set hostname",
		"userns_mode":   "the worker's engine sets the user namespace; leave it out",
		"cgroup":        "the worker's engine sets the cgroup; leave it out",
		"cgroup_parent": "the worker's engine sets the cgroup; leave it out",
		"devices":       "a container has no devices of the host; leave it out", "device_cgroup_rules": "a container has no devices of the host; leave it out",
		"gpus":           "environment.gpus of task.toml is the number of GPUs; leave it out",
		"ports":          "no port of a task is published on the host; services reach each other by name without it, or use expose",
		"sysctls":        "a task cannot change kernel settings; leave it out",
		"runtime":        "the worker's engine sets the runtime; leave it out",
		"volumes_from":   "containers share only named volumes; add one under volumes",
		"volume_driver":  "volumes are folders of the rollout; leave it out",
		"external_links": "containers outside the task cannot be reached; leave it out", "use_api_socket": "a container has no access to the engine's socket; leave it out",
		"credential_spec": "it is for Windows; leave it out", "isolation": "it is for Windows; leave it out",
		"storage_opt": "the disk is limited by environment.storage_mb of task.toml", "oom_kill_disable": "memory limits cannot be turned off; leave it out",
		"provider": "only containers are started; leave it out", "models": "agents call models through the gate; leave it out",
		"post_start": "hooks do not run; use a service and depends_on with service_completed_successfully", "pre_start": "hooks do not run; use a service and depends_on with service_completed_successfully",
		"pre_stop": "hooks do not run; use [[verifier.collect]] of task.toml", "label_file": "labels have no effect; leave it out",
		"blkio_config":  "a task cannot set the disk's speed; leave it out",
		"cpu_rt_period": "a task cannot use real-time scheduling; leave it out", "cpu_rt_runtime": "a task cannot use real-time scheduling; leave it out",
		"mac_address":   "the worker sets addresses; leave it out",
		"oom_score_adj": "a task cannot set the priority of its processes; leave it out", "group_add": "a user has the groups of the image's /etc/group; add the user there",
	}
	for _, k := range []string{
		"image", "build", "command", "entrypoint", "environment", "env_file", "working_dir", "user", "hostname", "container_name", "extra_hosts", "tmpfs", "shm_size",
		"ulimits", "healthcheck", "depends_on", "volumes", "networks", "network_mode", "links", "restart", "configs", "secrets", "cap_add", "security_opt",
		"deploy", "cpus", "mem_limit", "pids_limit", "scale",
	} {
		keys[k] = keyUsed
	}
	for _, k := range []string{
		"init", "tty", "stdin_open", "expose", "labels", "annotations", "logging", "attach", "platform", "pull_policy", "profiles", "cap_drop", "extends",
		"stop_signal", "stop_grace_period", "mem_reservation", "memswap_limit", "mem_swappiness", "cpu_shares", "cpu_count", "cpu_percent", "cpu_period", "cpu_quota", "cpuset",
		"read_only", "develop", "dns", "dns_search", "dns_opt", "domainname", "umask",
	} {
		keys[k] = keyDropped
	}
	return keys
}

// notedKeys returns the dropped keys that the result notes.
func notedKeys() []string {
	return []string{"read_only", "develop", "dns", "dns_search", "dns_opt", "domainname", "cpuset", "cpu_quota"}
}

// buildKeys returns the known keys of a service's build, in the form of
// serviceKeys.
func buildKeys() map[string]string {
	keys := map[string]string{
		"ssh": "the submitter's keys are not used; leave it out", "secrets": "a build has no secrets; leave it out",
		"network": "the worker sets the network of builds; leave it out", "entitlements": "a build has no additional rights; leave it out",
		"privileged": "a build has no additional rights; leave it out", "isolation": "it is for Windows; leave it out",
		"additional_contexts": "a build has one context, below environment/; leave it out",
		"dockerfile_inline":   "write it into a Dockerfile below environment/",
		"extra_hosts":         "the worker sets the network of builds; leave it out",
	}
	for _, k := range []string{"context", "dockerfile", "args", "target"} {
		keys[k] = keyUsed
	}
	for _, k := range []string{"cache_from", "cache_to", "no_cache", "no_cache_filter", "labels", "tags", "pull", "platforms", "shm_size", "ulimits", "provenance", "sbom"} {
		keys[k] = keyDropped
	}
	return keys
}

// refuse reports an error for every key that a task may not have.
func (c *composer) refuse(model map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(model)) {
		switch {
		case slices.Contains([]string{"name", "version", "services", "networks", "volumes", "configs", "secrets"}, key), strings.HasPrefix(key, "x-"):
		default:
			c.bad(key, model[key], "it is not supported; leave it out")
		}
	}
	services, _ := model["services"].(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(services)) {
		service, _ := services[name].(map[string]any)
		c.refuseKeys("services."+name+".", service, serviceKeys())
		if build, ok := service["build"].(map[string]any); ok {
			c.refuseKeys("services."+name+".build.", build, buildKeys())
		}
		for _, key := range notedKeys() {
			if v, ok := service[key]; ok && !empty(v) {
				c.note("services.%s.%s has no effect", name, key)
			}
		}
	}
	for _, kind := range []string{"networks", "volumes", "configs", "secrets"} {
		all, _ := model[kind].(map[string]any)
		for _, name := range slices.Sorted(maps.Keys(all)) {
			one, _ := all[name].(map[string]any)
			at := kind + "." + name
			switch driver := fmt.Sprint(one["driver"]); {
			case !empty(one["external"]):
				c.bad(at+".external", one["external"], "a task can use only its own; leave it out")
			case !empty(one["driver_opts"]):
				c.bad(at+".driver_opts", one["driver_opts"], "options of a driver can change the host; leave them out")
			case !empty(one["driver"]) && driver != "local" && driver != "bridge" && driver != "default":
				c.bad(at+".driver", driver, "want local for a volume and bridge for a network")
			case !empty(one["template_driver"]):
				c.bad(at+".template_driver", one["template_driver"], "it is not supported; leave it out")
			case kind == "networks" && !empty(one["ipam"]):
				c.note("networks.%s.ipam has no effect: the worker sets addresses", name)
			}
		}
	}
}

func (c *composer) refuseKeys(at string, have map[string]any, known map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(have)) {
		why, ok := known[key]
		switch {
		case strings.HasPrefix(key, "x-"), empty(have[key]), ok && (why == keyUsed || why == keyDropped):
		case !ok:
			c.bad(at+key, have[key], "it is not supported; leave it out")
		default:
			c.bad(at+key, have[key], why)
		}
	}
}

// empty reports whether a value has no effect, such as false or an empty list.
func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case bool:
		return !v
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	default:
		return false
	}
}
