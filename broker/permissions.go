package broker

import (
	"github.com/nats-io/nats-server/v2/server"

	"github.com/turngate/turngate/subjects"
)

// InboxFor is the inbox prefix of a role's own connection; permissions are
// bound to it, so that nobody hears another's replies.
func InboxFor(role, name string) string { return "_INBOX." + role + "." + name }

// trainerPermissions let a trainer act only as itself: submit and cancel its
// own rollouts, hear and answer its own calls, put bundles, read results and
// artifacts. It cannot create consumers, whose delivery subject would let it
// publish anywhere.
func trainerPermissions(tid string) *server.Permissions {
	allow := []string{
		subjects.Requests + ".*." + tid,
		subjects.TrainerCancel(tid),
		subjects.TrainerHold(tid),
		"_INBOX.gate." + tid + ".>",
		"$O." + subjects.BucketTasks + ".>",
		"$JS.API.INFO",
	}
	for _, stream := range trainerStreams() {
		allow = append(allow, "$JS.API.STREAM.INFO."+stream, "$JS.API.STREAM.MSG.GET."+stream)
	}
	return &server.Permissions{
		Publish: &server.SubjectPermission{Allow: allow},
		Subscribe: &server.SubjectPermission{Allow: []string{
			subjects.CallsOf(tid, ""), subjects.ToolsOf(tid, ""), subjects.TrainerResults(tid), InboxFor("trainer", tid) + ".>",
		}},
	}
}

// opsPermissions let people watch and nothing else.
func opsPermissions() *server.Permissions {
	return &server.Permissions{
		Publish: &server.SubjectPermission{Allow: []string{
			"$JS.API.INFO", "$JS.API.STREAM.INFO.>", "$JS.API.STREAM.NAMES", "$JS.API.STREAM.MSG.GET." + subjects.StreamRollouts,
			"$JS.API.CONSUMER.CREATE." + subjects.StreamEvents + ".>", "$JS.API.CONSUMER.DELETE." + subjects.StreamEvents + ".>",
			"$JS.API.CONSUMER.INFO." + subjects.StreamEvents + ".>", "$JS.API.CONSUMER.MSG.NEXT." + subjects.StreamEvents + ".>",
			"$JS.API.CONSUMER.CREATE." + subjects.StreamWorkers + ".>", "$JS.API.CONSUMER.DELETE." + subjects.StreamWorkers + ".>",
			"$JS.API.CONSUMER.INFO." + subjects.StreamWorkers + ".>", "$JS.API.CONSUMER.MSG.NEXT." + subjects.StreamWorkers + ".>",
			"$JS.API.STREAM.MSG.GET." + subjects.StreamDead,
		}},
		Subscribe: &server.SubjectPermission{Allow: []string{"rollout.>", "worker.>", "trainer.*.results", InboxFor("ops", "ops") + ".>"}},
	}
}
