package telemetry

import (
	"strings"

	"github.com/turngate/turngate/schema"
)

// other is the value of a label for all texts that are not known.
const other = "other"

// faultLabel returns the code of a fault as a label, empty without a fault. A trainer
// may refuse a call with a code of its own.
func faultLabel(f *schema.Fault) string {
	if f == nil {
		return ""
	}
	switch f.Code {
	case schema.CodeInvalid, schema.CodeNoTrainer, schema.CodeCancelled, schema.CodeTimeout, schema.CodeOOM, schema.CodeDisk, schema.CodeExit, schema.CodeCallCap, schema.CodeTokenCap,
		schema.CodeUpstream, schema.CodeAborted, schema.CodeRepeats, schema.CodeSetup, schema.CodeService, schema.CodeNoReward, schema.CodeBadBundle, schema.CodeImage, schema.CodeNoImage,
		schema.CodeImageAuth, schema.CodeImageRate, schema.CodeImageKind, schema.CodeMissing, schema.CodeInternal, schema.CodeUnsupported, schema.CodeStaleAttempt, schema.CodeOver,
		schema.CodeTooLarge, schema.CodeAgentError, schema.CodeNoCalls, schema.CodeSpoiled, schema.CodeNoWorker, schema.CodeUnreadable, schema.CodeFull, schema.CodeBadAnswer, schema.CodeGap,
		schema.CodeTranscript, schema.CodeContext, schema.CodeRefused,
		"replay": // of answers from a script
		return f.Code
	}
	return other
}

// PhaseKind returns the kind of a phase: its name without the names of a step, a
// service and a number.
func PhaseKind(name string) string {
	if rest, ok := strings.CutPrefix(name, "step/"); ok {
		_, name, _ = strings.Cut(rest, "/")
	}
	if i := strings.IndexAny(name, "/["); i >= 0 {
		name = name[:i]
	}
	switch name {
	case "create", "snapshot", "upload", "setup", "healthcheck", "services", "agent", "collect", "artifacts", "verify-create", "verify-upload", "verifier-services", "verify", "transcript":
		return name
	}
	return other
}
