package upstream

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/turngate/turngate/schema"
)

// refusal is an error response of an upstream, with the fault for its status.
type refusal struct {
	status  int
	message string
	param   string // the parameter that it names; empty: none
	code    string
	unknown string // the parameter that the upstream does not know; empty: none
	fault   *schema.Fault
}

func (r *refusal) Error() string { return r.fault.Error() }
func (r *refusal) Unwrap() error { return r.fault }

// refused reads a refusal. A fault of the agent's request is final; all others
// are retryable.
func refused(res *http.Response, data []byte) *refusal {
	r := readRefusal(data)
	r.status = res.StatusCode
	text := schema.Clip(strings.TrimSpace(string(data)), 2000)
	switch status := r.status; {
	case status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusNotFound:
		// A mistake in the configuration; the agent cannot correct it.
		r.fault = wrongConfiguration("it says %s: %s", res.Status, text)
	case status >= 400 && status < 500 && !schema.RetryableStatus(status):
		r.fault = fail(http.StatusBadRequest, "it says %s: %s", res.Status, text)
	default:
		r.fault = fail(status, "it says %s: %s", res.Status, text)
		if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
			r.fault.RetryAfterMS = (time.Duration(min(s, 600)) * time.Second).Milliseconds()
		}
	}
	return r
}

// refusedInStream reads a refusal that arrived as an event of a stream.
func refusedInStream(data []byte) *refusal {
	r := readRefusal(data)
	var code struct {
		Error struct{ Code any }
		Code  any
	}
	_ = json.Unmarshal(data, &code) // a refusal without a code is retryable
	for _, c := range []any{code.Error.Code, code.Code} {
		if n, ok := c.(float64); ok && n >= 400 && n <= 599 {
			r.status = int(n)
		}
	}
	text := schema.Clip(r.message, 2000)
	if r.status >= 400 && r.status < 500 && !schema.RetryableStatus(r.status) {
		r.fault = fail(http.StatusBadRequest, "it says in its stream: %s", text)
	} else {
		r.fault = fail(r.status, "it says in its stream: %s", text)
	}
	return r
}

// wrongConfiguration returns a fault that an operator can correct while the
// call waits.
func wrongConfiguration(format string, args ...any) *schema.Fault {
	f := fail(http.StatusServiceUnavailable, format, args...)
	f.RetryAfterMS = 5000
	return f
}

// readRefusal reads the formats of several upstreams: OpenAI's error object
// (vLLM, llama.cpp, hosted engines), the same without the outer object
// (SGLang), and FastAPI's detail.
func readRefusal(data []byte) *refusal {
	type named struct {
		Message string `json:"message"`
		Param   string `json:"param"`
		Code    any    `json:"code"`
		Type    any    `json:"type"`
	}
	var whole struct {
		named
		Error  json.RawMessage `json:"error"`
		Detail json.RawMessage `json:"detail"`
	}
	r := &refusal{}
	if json.Unmarshal(data, &whole) != nil {
		r.message = strings.TrimSpace(string(data))
		r.unknown = unknownIn(r.message)
		return r
	}
	n := whole.named
	if json.Unmarshal(whole.Error, &n) != nil {
		_ = json.Unmarshal(whole.Error, &n.Message) // a text
	}
	var details []struct {
		Type string `json:"type"`
		Loc  []any  `json:"loc"`
		Msg  string `json:"msg"`
	}
	switch {
	case n.Message != "":
	case json.Unmarshal(whole.Detail, &n.Message) == nil:
	case json.Unmarshal(whole.Detail, &details) == nil && len(details) > 0:
		d := details[0]
		n.Message = d.Msg
		if len(d.Loc) > 1 && d.Loc[0] == "body" {
			n.Param = fmt.Sprint(d.Loc[1])
		}
		if d.Type == "extra_forbidden" && len(d.Loc) == 2 {
			r.unknown = n.Param
		}
	}
	r.message = n.Message
	if code, ok := n.Code.(string); ok {
		r.code = code
	} else if kind, ok := n.Type.(string); ok {
		r.code = kind
	}
	r.param, _, _ = strings.Cut(strings.TrimPrefix(n.Param, "body."), ".")
	if r.unknown == "" {
		r.unknown = unknownIn(r.message)
	}
	return r
}

// unknownParameter matches the beginning of a text about an unknown parameter.
// The text after the name may be the agent's own words.
var unknownParameter = regexp.MustCompile(`^(?:Unrecognized request arguments? supplied: |Unrecognized request argument: |` +
	"(?:Unknown|Unsupported|Unexpected|Unrecognized) (?:parameter|field|argument):? ['\"`]?|" +
	`property '|` +
	`\d+ validation errors?:\s*\{'type': 'extra_forbidden', 'loc': '(?:body\.)?|` +
	`\[\{'type': 'extra_forbidden', 'loc': \('body', ')([a-z_]+)`)

func unknownIn(message string) string {
	if m := unknownParameter.FindStringSubmatch(message); m != nil {
		return m[1]
	}
	return ""
}

var (
	// promptTooLong: the prompt alone is too long, even with a smaller
	// bound of the completion.
	promptTooLong = regexp.MustCompile(`prompt contains at least \d+ input tokens|Please reduce the length of the input|longer than the model's context length|` +
		`[Pp]rompt is too long|exceeds the (?:maximum allowed|model's maximum input|available context)|maximum prompt length|exceeds? the context window`)
	// contextTooLong: the prompt, the completion or their sum is too long.
	contextTooLong = regexp.MustCompile(`maximum context length|context length|context_length|max_model_len|context size`)
	// completionTooLong: the bound of the completion is above the upstream's
	// limit.
	completionTooLong = regexp.MustCompile(`^'?max_(?:completion_|new_)?tokens'?.* (?:is too large|cannot be greater than|must be (?:less|at most|<=))`)
	// topsTooMany: too many alternatives; the group is the upstream's limit.
	topsTooMany = regexp.MustCompile(`^Requested sample logprobs of \d+, which is greater than max allowed: (\d+)`)
	// startedWithout: the upstream was started without an option.
	startedWithout = regexp.MustCompile(`^"?[a-z]+"? tool choice requires --`)
	// outOfRange: the group is the name of the parameter.
	outOfRange = regexp.MustCompile(`^([a-z_]+) (?:must|cannot|should|is)\b`)
	// echo is a suffix that vLLM adds for programs.
	echo = regexp.MustCompile(` ?\(parameter=[a-z_]+(?:, value=.*)?\)$`)
)

// isContext reports whether a refusal is about the length of the context, and
// whether the prompt alone is too long.
func (r *refusal) isContext() (is, prompt bool) {
	if r.param == "input_tokens" || r.code == "exceed_context_size_error" || promptTooLong.MatchString(r.message) {
		return true, true
	}
	return r.code == schema.CodeContext || contextTooLong.MatchString(r.message), false
}

// mend changes the request for another try. It returns false if no change
// helps.
func (q *request) mend(r *refusal) bool {
	if r.status == http.StatusNotFound {
		q.u.served.forget() // the upstream may run another model now
	}
	if r.status != http.StatusBadRequest && r.status != http.StatusUnprocessableEntity || q.started {
		return false
	}
	if r.unknown != "" {
		return q.learn(r.unknown)
	}
	is, prompt := r.isContext()
	if q.limit && !prompt && (is || completionTooLong.MatchString(r.message) || r.param == maxTokens || r.param == maxCompletionTokens) {
		q.unbounded = true
		return true
	}
	if m := topsTooMany.FindStringSubmatch(r.message); m != nil {
		most, err := strconv.Atoi(m[1])
		var asked int
		if err != nil || json.Unmarshal(q.params["top_logprobs"], &asked) != nil || asked <= most {
			return false
		}
		q.u.learned.limitTops(most)
		return true
	}
	return false
}

// learn leaves out an unknown parameter from now on. It returns false for a
// parameter that the call or training needs.
func (q *request) learn(name string) bool {
	_, sent := q.params[name]
	if !sent || kindOf(name) == ours && name != "stream_options" && name != "chat_template_kwargs" {
		return false
	}
	q.u.learned.refuse(name)
	return true
}

// blame returns the final fault of a refusal, with the words for the agent.
func (q *request) blame(r *refusal) error {
	if r.fault.Status != http.StatusBadRequest || r.status == http.StatusMethodNotAllowed {
		return r
	}
	f := *r.fault
	if is, prompt := r.isContext(); is || prompt {
		f.Code, f.AgentMessage = schema.CodeContext, "The conversation exceeds the model's context length."
		return &f
	}
	name := r.unknown
	if name == "" {
		name = r.param
	}
	if m := outOfRange.FindStringSubmatch(r.message); name == "" && m != nil {
		name = m[1]
	}
	_, sent := q.params[name]
	switch {
	case startedWithout.MatchString(r.message):
		wrong := *r
		wrong.fault = wrongConfiguration("%s", f.Message)
		return &wrong
	case name == "logprobs" || name == "return_token_ids" || name == "top_logprobs":
		return badAnswer("%s, which training needs, is not taken: %s", name, schema.Clip(r.message, 1000))
	case sent && kindOf(name) == agents:
		f.AgentMessage = schema.Clip(strings.Join(strings.Fields(echo.ReplaceAllString(r.message, "")), " "), 500)
	}
	return &f
}
