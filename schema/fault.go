package schema

import "fmt"

// Values of Fault.Who: the party that caused a fault.
const (
	WhoAgent   = "agent"
	WhoTask    = "task"
	WhoSandbox = "sandbox"
	WhoTrainer = "trainer"
	WhoWorker  = "worker"
	WhoUser    = "user"
)

// Fault codes that callers decide on. Stages and messages are for people.
const (
	CodeInvalid      = "invalid"
	CodeNoTrainer    = "no_trainer"
	CodeCancelled    = "cancelled"
	CodeTimeout      = "timeout"
	CodeOOM          = "oom"
	CodeDisk         = "disk" // more was written than the sandbox may hold
	CodeExit         = "exit"
	CodeCallCap      = "call_cap"
	CodeTokenCap     = "token_cap"
	CodeUpstream     = "upstream" // the model server refused a call, or did not answer it
	CodeAborted      = "aborted"  // a generation or a call was left before its end
	CodeRepeats      = "repeats"  // the agent's calls repeat without progress
	CodeSetup        = "setup_failed"
	CodeService      = "service_failed" // a side-car did not become ready
	CodeNoReward     = "no_reward"
	CodeBadBundle    = "bad_bundle"
	CodeImage        = "image"            // the image cannot be built or used
	CodeNoImage      = "image_missing"    // no registry has the image
	CodeImageAuth    = "image_auth"       // the registry wants a login
	CodeImageRate    = "image_rate_limit" // the registry refuses more pulls for a while
	CodeImageKind    = "image_platform"   // the image has another architecture
	CodeMissing      = "missing"
	CodeInternal     = "internal"
	CodeUnsupported  = "unsupported"
	CodeStaleAttempt = "stale_attempt"
	CodeOver         = "over" // an operation of a verification, or of a generation, that has ended
	CodeTooLarge     = "too_large"
	CodeAgentError   = "agent_error"
	CodeNoCalls      = "no_calls"        // the agent ended without a call to its model
	CodeRefused      = "refused"         // a call was refused; as the fault of an agent: it ended after such a call
	CodeSpoiled      = "sandbox_spoiled" // the agent, or a command of the task, left a sandbox that cannot be used
	CodeNoWorker     = "no_capable_worker"
	CodeUnreadable   = "unreadable"
	CodeFull         = "bucket_full" // the trainer's files have reached their bound
	// CodeBadAnswer refuses an answer without a required part, such as a log-prob
	// for each token id. The call is asked again, twice.
	CodeBadAnswer = "bad_answer"
	// CodeGap names deltas of an answer that did not arrive. They are asked for.
	CodeGap = "gap"
	// CodeTranscript marks a result with a transcript that lacks its end.
	CodeTranscript = "transcript_truncated"
	// CodeContext refuses a call that is longer than the model's context. Every
	// dialect reports it in the form of its API, so that agents compact. As the fault
	// of an agent it means that the agent ended after such a call.
	CodeContext = "context_length_exceeded"
)

// Fault describes a failure: its stage, its cause and the party that can mend
// it. As the answer to a model call it also carries an HTTP status.
type Fault struct {
	Stage     string `json:"stage,omitempty"` // sandbox, setup, agent, verify, call, request, ...
	Code      string `json:"code"`
	Message   string `json:"message"`
	Who       string `json:"who,omitempty"` // agent, task, sandbox, trainer, worker or user; the answer to a model call may leave it out
	Retryable bool   `json:"retryable,omitempty"`

	// Status is the HTTP status of a fault that answers a model call: 400,
	// 409, 410, 413, 425, 429 or 5xx. 0 elsewhere.
	Status int `json:"status,omitempty"`
	// AgentMessage is text that the agent may read. Without it the agent
	// reads a generic text; Message goes to events and results only.
	AgentMessage string `json:"agent_message,omitempty"`
	// RetryAfterMS is the time to wait before the next try, in milliseconds.
	RetryAfterMS int64 `json:"retry_after_ms,omitempty"`
}

// Error makes a Fault usable as an error.
func (f *Fault) Error() string {
	s := f.Message
	if f.Code != "" {
		s = f.Code + ": " + s
	}
	if f.Stage != "" {
		s = f.Stage + ": " + s
	}
	return s
}

func (f *Fault) check() error {
	if f.Code == "" {
		return invalid("fault.code", "", "want a short name")
	}
	if f.Status != 0 && (f.Status < 400 || f.Status > 599) {
		return invalid("fault.status", f.Status, "want 400 to 599, or none")
	}
	for _, t := range []struct {
		field, value string
		limit        int
	}{
		{"fault.code", f.Code, 64}, {"fault.stage", f.Stage, 64}, {"fault.who", f.Who, 16},
		{"fault.message", f.Message, maxText}, {"fault.agent_message", f.AgentMessage, maxText},
	} {
		if err := checkText(t.field, t.value, t.limit); err != nil {
			return err
		}
	}
	return checkRange("fault.retry_after_ms", f.RetryAfterMS, 0, maxDurationMS)
}

// RetryableStatus reports whether a call that got this HTTP status is asked
// again under the same key.
func RetryableStatus(status int) bool {
	return status == 425 || status == 429 || status >= 500
}

// Faultf makes a fault with a formatted message, cut to the bound.
func Faultf(stage, code, who, format string, args ...any) *Fault {
	return &Fault{Stage: stage, Code: code, Who: who, Message: Clip(fmt.Sprintf(format, args...), maxText)}
}

// Exit describes the end of a process in the sandbox. It is data about the
// agent or task, never an error of turngate.
type Exit struct {
	Code        int    `json:"code"`             // exit status; 128+signal when a signal ended it
	Signal      string `json:"signal,omitempty"` // such as "killed"; empty when it exited
	TimedOut    bool   `json:"timed_out,omitempty"`
	OOM         bool   `json:"oom,omitempty"`
	Disk        bool   `json:"disk,omitempty"` // ended because the sandbox exceeded its disk limit
	MS          int64  `json:"ms"`             // wall time in milliseconds
	StdoutBytes int64  `json:"stdout_bytes,omitempty"`
	StderrBytes int64  `json:"stderr_bytes,omitempty"`
}

// OK reports whether the process ended by itself with status 0.
func (e Exit) OK() bool { return e.Code == 0 && e.Signal == "" && !e.TimedOut && !e.OOM && !e.Disk }

// String describes the exit in a few words.
func (e Exit) String() string {
	switch {
	case e.Disk:
		return "over the disk limit"
	case e.OOM:
		return "out of memory"
	case e.TimedOut:
		return "timed out"
	case e.Signal != "":
		return "ended by signal " + e.Signal
	default:
		return fmt.Sprintf("exit status %d", e.Code)
	}
}
