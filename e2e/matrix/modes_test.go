package matrix_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/turngate/turngate/schema"
)

// mode is a way in which engines answer, and the outcome that it must have with
// every agent.
type mode struct {
	name string
	// answer returns the answer to a request of the agent itself.
	answer func(q *question) answer
	// breaks returns true for a request without an answer, and cuts for one with an
	// answer that breaks off after a part.
	breaks, cuts func(q *question) bool
	// spoil changes the members of an answer and of its only choice.
	spoil func(top, choice map[string]any)
	// deltas makes the pieces of a stream; nil: one piece.
	deltas func(said map[string]any) []map[string]any
	// reasoning is the name of the member with the reasoning; empty: reasoning_content.
	reasoning   string
	nullContent bool // an empty text is null
	strips      bool // the template leaves out earlier reasoning
	thinks      bool // a call without earlier reasoning is refused
	merges      bool // a text that is read again has other tokens
	whole       bool // not for streams

	want want
}

// want is the right outcome of a cell.
type want struct {
	file  string // lines of the file, sorted, joined by a space
	calls int    // of the agent itself; 0: any number up to most
	most  int
	fault string // code; with one that is not the agent's there is no reward
	rows  int    // 0: any number
	// untrained is the reason for which no sampled token is trained; empty: all are.
	untrained string
	// exits lists agents that end with an error of their own.
	exits []string
	// givesUp lists agents that may end when a stream breaks, and not ask again: their last
	// call was refused.
	givesUp []string
}

func (m mode) reasoningField() string { return cmp.Or(m.reasoning, "reasoning_content") }

// twoTurns runs a command and ends.
func twoTurns(last answer) func(*question) answer {
	return first(func(q *question) answer { return run(q, "hello, I will do it.", "call_a", "echo hi >> hello.txt") }, last)
}

// first gives one answer until a tool has run, and then another one.
func first(f func(q *question) answer, last answer) func(*question) answer {
	return func(q *question) answer {
		if q.results() == 0 {
			return f(q)
		}
		return last
	}
}

func run(q *question, text, id, command string) answer {
	call, _ := q.shell(id, command)
	return answer{text: text, calls: []map[string]any{call}, finish: "tool_calls"}
}

// several calls the tool once for each id.
func several(ids ...string) func(*question) answer {
	return first(func(q *question) answer {
		a := answer{text: "hello, I will do it.", finish: "tool_calls"}
		for i, id := range ids {
			call, _ := q.shell(strings.ReplaceAll(id, "NAME", nameOf(q)), fmt.Sprintf("echo %d >> hello.txt", i))
			a.calls = append(a.calls, call)
		}
		return a
	}, say("All done."))
}

func nameOf(q *question) string {
	call, _ := q.shell("", "")
	f, _ := call["function"].(map[string]any)
	return fmt.Sprint(f["name"])
}

// turns runs a command in each of n turns, with an id and a thought for each.
func turns(n int, id func(q *question, turn int) string, thought string) func(*question) answer {
	return func(q *question) answer {
		turn := q.results()
		if turn >= n {
			return say("All done.")
		}
		a := run(q, fmt.Sprintf("step %d", turn), id(q, turn), fmt.Sprintf("echo turn%d >> hello.txt", turn))
		a.reasoning = strings.Repeat(thought, 8)
		return a
	}
}

func numbered(_ *question, turn int) string { return fmt.Sprintf("call_%d", turn) }

func done(a answer, change func(a *answer)) answer {
	change(&a)
	return a
}

// edited changes the call of the first answer.
func edited(change func(call map[string]any)) func(*question) answer {
	two := twoTurns(say("All done."))
	return func(q *question) answer {
		a := two(q)
		for i := range a.calls {
			change(a.calls[i])
		}
		return a
	}
}

func modes() []mode {
	hi := want{file: "hi", calls: 2, rows: 1}
	bad := want{fault: schema.CodeBadAnswer, most: 2}
	badLater := want{fault: schema.CodeBadAnswer, calls: 2, file: "hi"}
	two := twoTurns(say("All done."))
	ends := func(text string, finish any) func(*question) answer {
		return twoTurns(answer{text: text, finish: finish})
	}
	return slices.Concat([]mode{
		{name: "normal", answer: two, want: hi},
		{name: "fragments", answer: two, deltas: inFragments, want: hi},
		{name: "thinks", answer: thinking(two), want: hi},
		{name: "thinks_in_fragments", answer: thinking(two), deltas: inFragments, want: hi},
		{name: "field_reasoning", answer: thinking(two), reasoning: "reasoning", want: hi},
		{name: "null_content", answer: twoTurns(say("")), nullContent: true, want: want{file: "hi", most: 6}},
		{name: "empty_content", answer: twoTurns(say("")), want: want{file: "hi", most: 6}},
		{name: "only_reasoning", answer: twoTurns(done(say(""), func(a *answer) { a.reasoning = "I am done I think" })), nullContent: true, want: want{file: "hi", most: 6}},
		{name: "length", answer: ends("All do", "length"), want: want{file: "hi", most: 6, exits: []string{"codex", "claude-code"}}},
	}, finishes(two, ends, hi, badLater), ids(hi), tokens(bad, hi))
}

func thinking(f func(*question) answer) func(*question) answer {
	return func(q *question) answer {
		a := f(q)
		a.reasoning = "well, all is small"
		return a
	}
}

// finishes are modes in which the finish reason and the rest disagree.
func finishes(two func(*question) answer, ends func(string, any) func(*question) answer, hi, badLater want) []mode {
	return []mode{
		{name: "stop_with_calls", answer: func(q *question) answer { return done(two(q), func(a *answer) { a.finish = "stop" }) }, want: hi},
		{name: "tool_calls_without_calls", answer: ends("All done.", "tool_calls"), want: hi},
		{name: "tool_calls_with_an_empty_list", answer: twoTurns(answer{text: "All done.", calls: []map[string]any{}, finish: "tool_calls"}), want: hi},
		{name: "unknown_finish", answer: ends("", "unknown"), want: badLater},
		{name: "unknown_finish_with_text", answer: ends("All done.", "eos"), want: badLater},
		{name: "no_finish", answer: ends("All done.", nil), want: badLater},
		{name: "no_finish_nor_text", answer: ends("", nil), want: badLater},
	}
}

// ids are modes with ids, arguments and orders of calls that clients cannot use.
func ids(hi want) []mode {
	long := strings.Repeat("x", 300)
	three := want{file: "0 1 2", calls: 2, rows: 1}
	turnWant := want{file: "turn0 turn1 turn2", calls: 4, rows: 1}
	return []mode{
		{name: "ids_begin_again", answer: turns(3, func(*question, int) string { return "call_0" }, ""), want: turnWant},
		{name: "ids_begin_again_with_names", answer: turns(3, func(q *question, _ int) string { return "functions." + nameOf(q) + ":0" }, ""), want: turnWant},
		{name: "parallel", answer: several("call_0", "call_1", "call_2"), want: three},
		{name: "parallel_in_fragments", answer: several("call_0", "call_1", "call_2"), deltas: inFragments, want: three},
		{name: "parallel_backward", answer: several("call_0", "call_1", "call_2"), deltas: backward, want: three},
		{name: "same_ids", answer: several("call_0", "call_0", "call_0"), want: three},
		{name: "ids_with_names", answer: several("functions.NAME:0", "functions.NAME:1", "functions.NAME:2"), want: three},
		{name: "empty_ids", answer: several("", "", ""), want: three},
		{name: "no_id", answer: edited(func(c map[string]any) { delete(c, "id") }), want: hi},
		{name: "long_ids", answer: several(long+"0", long+"1", long+"2"), want: three},
		{name: "odd_ids", answer: several("call 0/ä", "call\n1\"", "<call 2>"), want: three},
		{name: "arguments_are_an_object", answer: edited(argumentsObject), want: hi},
	}
}

// tokens are modes in which the tokens of the engine are wrong, or differ from those
// of the next prompt, and modes that end a rollout early.
func tokens(bad, hi want) []mode {
	two := twoTurns(say("All done."))
	ends := func(text string, finish any) func(*question) answer {
		return twoTurns(answer{text: text, finish: finish})
	}
	five := want{file: "turn0 turn1 turn2 turn3", calls: 5}
	change := func(f func(choice map[string]any)) func(top, choice map[string]any) {
		return func(_, choice map[string]any) { f(choice) }
	}
	logprob := func(to float64) func(top, choice map[string]any) {
		return change(func(c map[string]any) {
			probs, _ := c["logprobs"].(map[string]any)
			content, _ := probs["content"].([]any)
			first, _ := content[0].(map[string]any)
			first["logprob"] = to
		})
	}
	return []mode{
		{name: "template_strips", answer: thinking(two), strips: true, want: want{file: "hi", calls: 2}},
		{name: "template_strips_five_turns", answer: turns(4, numbered, "let me think about this step for a while. "), strips: true, want: five},
		{name: "template_keeps_five_turns", answer: turns(4, numbered, "let me think about this step for a while. "), want: five},
		{name: "wants_its_reasoning_back", answer: turns(4, numbered, "let me think about this step for a while. "), thinks: true, want: five},
		{name: "wants_its_reasoning_back_under_the_newer_name", answer: turns(4, numbered, "let me think about this step for a while. "), thinks: true, reasoning: "reasoning", want: five},
		{name: "read_again_with_other_tokens", answer: two, merges: true, want: want{file: "hi", calls: 2}},
		{name: "fewer_ids", answer: two, spoil: change(func(c map[string]any) {
			ids, _ := c["token_ids"].([]int32)
			c["token_ids"] = ids[3:]
		}), want: bad},
		{name: "no_ids", answer: two, spoil: func(top, c map[string]any) { delete(top, "prompt_token_ids"); delete(c, "token_ids") }, want: want{file: "hi", calls: 2, untrained: "ids_missing"}},
		{name: "no_logprobs", answer: two, spoil: change(func(c map[string]any) { delete(c, "logprobs") }), want: want{file: "hi", calls: 2, untrained: "logprobs_missing"}},
		{name: "logprob_of_minus_9999", answer: two, spoil: logprob(-9999), want: hi},
		{name: "positive_logprob", answer: two, spoil: logprob(0.7), want: want{file: "hi", calls: 2, untrained: "logprob_positive"}},
		{name: "one_request_breaks", answer: two, breaks: func(q *question) bool { return q.results() > 0 }, want: want{fault: schema.CodeBadAnswer, calls: 2}},
		{name: "one_answer_breaks_off", answer: two, cuts: func(q *question) bool { return q.results() > 0 }, want: want{fault: schema.CodeBadAnswer, most: 8, givesUp: []string{"pi"}}},
		{name: "one_generation_is_aborted", answer: ends("", "abort"), whole: true, want: want{fault: schema.CodeBadAnswer, calls: 2}},
		{name: "repeats", answer: func(q *question) answer {
			return run(q, "again", fmt.Sprint("call_", q.results()), "echo hi >> hello.txt")
		}, want: want{fault: schema.CodeRepeats, calls: maxRepeats, file: strings.TrimSpace(strings.Repeat("hi ", maxRepeats))}},
	}
}

// maxRepeats is gate.max_repeats of every cell.
const maxRepeats = 4

func argumentsObject(call map[string]any) {
	f, _ := call["function"].(map[string]any)
	text, _ := f["arguments"].(string)
	f = maps.Clone(f)
	f["arguments"] = rawJSON(text)
	call["function"] = f
}

// backward sends the calls from the last to the first.
func backward(said map[string]any) (all []map[string]any) {
	all = oneDelta(said)
	calls, _ := all[0]["tool_calls"].([]map[string]any)
	delete(all[0], "tool_calls")
	for _, c := range slices.Backward(calls) {
		all = append(all, map[string]any{"tool_calls": []any{c}})
	}
	return append(all, map[string]any{})
}
