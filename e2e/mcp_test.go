package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turngate/turngate/agents"
	"github.com/turngate/turngate/internal/playback"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/tasks"
	"github.com/turngate/turngate/trainer"
)

// mcpServer is a server with one tool, in Perl, which every Debian image has.
const mcpServer = `#!/usr/bin/perl
$| = 1;
while (my $line = <STDIN>) {
	my ($id) = $line =~ /"id"\s*:\s*(\d+|"[^"]*")/ or next;
	my ($method) = $line =~ /"method"\s*:\s*"([^"]+)"/;
	my ($version) = $line =~ /"protocolVersion"\s*:\s*"([^"]+)"/;
	my $result = '{}';
	$result = qq({"protocolVersion":"$version","capabilities":{"tools":{}},"serverInfo":{"name":"rec","version":"1"}}) if $method eq 'initialize';
	$result = '{"tools":[{"name":"record","description":"Records a text.","inputSchema":{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}}]}' if $method eq 'tools/list';
	if ($method eq 'tools/call') {
		my ($text) = $line =~ /"text"\s*:\s*"([^"]*)"/;
		$result = qq({"content":[{"type":"text","text":"$ENV{WORD} $text"}]});
	}
	print qq({"jsonrpc":"2.0","id":$id,"result":$result}\n);
}
`

// TestEveryAgentReachesItsMCPServer checks that each agent with support for MCP
// starts a server in its sandbox, offers its tool to the model beside its own
// tools, and calls it.
func TestEveryAgentReachesItsMCPServer(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	throughMCP(t, nil, func(r *schema.Request) {
		r.Setup = []schema.Command{{Run: `printf '%s' "$MCP" > /opt/mcp.pl && chmod 755 /opt/mcp.pl`, User: "root", Env: map[string]string{"MCP": mcpServer}}}
		r.Agent.MCP = []schema.MCPServer{{Name: "rec", Command: []string{"/opt/mcp.pl"}, Env: map[string]string{"WORD": "recorded"}}}
	})
}

// httpMCPServer serves mcpServer over HTTP: each request starts the command once.
const httpMCPServer = `#!/usr/bin/perl
use IO::Socket::INET;
$SIG{CHLD} = 'IGNORE';
my $listen = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 7345, Listen => 16, ReuseAddr => 1) or die $!;
exit 0 if fork;
open STDIN, '<', '/dev/null'; open STDOUT, '>', '/dev/null'; open STDERR, '>', '/dev/null';
while (1) {
	my $c = $listen->accept or next;
	next if fork;
	my ($method, $length) = ('', 0);
	while (my $line = <$c>) {
		$method = $1 if $line =~ m{^(\w+) /};
		$length = $1 if $line =~ /^content-length:\s*(\d+)/i;
		last if $line =~ /^\r?\n$/;
	}
	read $c, my $body, $length;
	my ($status, $out) = ('405 Method Not Allowed', '');
	if ($method eq 'POST') {
		$status = '202 Accepted';
		if ($body =~ /"id"/) {
			$body =~ s/\n//g;
			open my $in, '>', "/tmp/in.$$"; print $in "$body\n"; close $in;
			$out = qx(WORD=recorded /opt/mcp.pl < /tmp/in.$$);
			$status = '200 OK';
		}
	}
	print $c "HTTP/1.1 $status\r\nContent-Type: application/json\r\nContent-Length: " . length($out) . "\r\nConnection: close\r\n\r\n$out";
	exit 0;
}
`

// TestEveryAgentReachesAnMCPServerThatRunsAlready tests a server in the sandbox
// that agents reach over HTTP.
func TestEveryAgentReachesAnMCPServerThatRunsAlready(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	throughMCP(t, nil, func(r *schema.Request) {
		r.Setup = []schema.Command{{
			Run:  `printf '%s' "$MCP" > /opt/mcp.pl && printf '%s' "$HTTP" > /opt/http.pl && chmod 755 /opt/*.pl && /opt/http.pl`,
			User: "root", Env: map[string]string{"MCP": mcpServer, "HTTP": httpMCPServer},
		}}
		r.Agent.MCP = []schema.MCPServer{{Name: "rec", URL: "http://127.0.0.1:7345/mcp", Transport: schema.TransportHTTP}}
	})
}

// TestEveryAgentUsesTheTrainersTools checks that the tools run in the trainer's
// process, once for each call.
func TestEveryAgentUsesTheTrainersTools(t *testing.T) {
	testenv.Slow(t)
	t.Parallel()
	var mu sync.Mutex
	runs := map[schema.ID]int{}
	b := throughMCP(t, map[string]trainer.Tool{"record": func(_ context.Context, c *trainer.ToolCall) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		runs[c.Rollout]++
		var args struct{ Text string }
		err := json.Unmarshal(c.Arguments, &args)
		return "recorded " + args.Text, err
	}}, func(r *schema.Request) {
		r.Agent.Tools = []schema.ToolSpec{{
			Name: "record", Description: "Records a text.", Parameters: json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}},"required":["text"]}`),
		}}
	})
	for id, n := range runs {
		if n != 1 {
			t.Errorf("%s: the tool was run %d times", id, n)
		}
	}
	if len(runs) == 0 {
		t.Error("no tool was run")
	}
	before := maps.Clone(runs)
	checkToolReplay(t, b, "local-pi")
	if !maps.Equal(before, runs) {
		t.Errorf("a replay ran a tool: %v, before %v", runs, before)
	}
}

// checkToolReplay runs a rollout again. The recording has the results of its tools.
func checkToolReplay(t *testing.T, b *bench, id string) {
	t.Helper()
	p := start(t, b.binary, "rollout", "replay", "--nats", b.nats.URL(), "--creds", b.nats.TrainerCreds("local"), "--agents", b.cache, "-o", "json", id)
	p.wait(t, 10*time.Minute) // its exit status says whether the messages differ, too, such as in a date
	var reports []playback.Report
	if err := json.Unmarshal([]byte(p.out.String()), &reports); err != nil || len(reports) != 1 {
		t.Fatalf("%v: %s", err, p.out)
	}
	if r := reports[0]; r.RecordedTools != 1 || r.AskedTools != 1 || len(r.MissingTools) != 0 || r.Diverged != nil && r.Diverged.Tool != "" {
		t.Errorf("got %+v", r)
	}
}

// throughMCP runs each agent that knows MCP servers, with the trainer's tools.
func throughMCP(t *testing.T, tools map[string]trainer.Tool, change func(*schema.Request)) *bench {
	t.Helper()
	b := newBench(t)
	var names []string
	for _, s := range agents.All() {
		if s.MCP {
			b.need(t, "docker", s.Name)
			names = append(names, s.Name)
		}
	}
	if len(names) < 6 {
		t.Fatalf("only %q know MCP servers", names)
	}
	b.worker(t, "", "--sandboxes", "docker", "--slots", "3")
	task, err := tasks.Load(copyTask(t, "examples/tasks/hello", nil), tasks.Options{})
	if err != nil {
		t.Fatal(err)
	}
	submitter := newTrainer(t, b, "nobody")
	answering := newTrainer(t, b, "0", func(c *trainer.Config) { c.Tools = tools })
	bundle, err := submitter.PutBundle(t.Context(), task.Bundle)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = answering.Serve(context.WithoutCancel(t.Context()), trainer.Whole(useRecord))
	}()
	defer func() { answering.Close(); <-served }()
	var all []schema.Request
	for _, name := range names {
		r := task.Request
		r.ID, r.Trainer, r.Agent.Name, r.Task.Bundle = schema.ID("local-"+name), "local", name, bundle
		r.Sandbox.Backend, r.Sandbox.Image = "docker", testenv.Image(t)
		change(&r)
		all = append(all, r)
	}
	if err := submitter.Submit(t.Context(), inDefaultShard(all)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	for range names {
		r, err := submitter.NextResult(ctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(r.Agent, func(t *testing.T) {
			if r.Status != schema.StatusDone || r.Fault != nil || r.Reward == nil || *r.Reward != 1 || r.Calls[schema.TagAgent].Count < 3 {
				t.Errorf("got %+v", r)
			}
		})
	}
	return b
}

// useRecord calls the server's tool, and solves the task only if it gets the
// tool's result.
func useRecord(_ context.Context, c *schema.Call) (*schema.Reply, error) {
	refuse := func(format string, args ...any) error {
		f := schema.Faultf("call", "test", schema.WhoTrainer, format, args...)
		f.Status = 400
		return f
	}
	turns, heard := 0, false
	for _, m := range c.Messages {
		var one struct{ Role string }
		if err := json.Unmarshal(m, &one); err != nil {
			return nil, err
		}
		if one.Role == "assistant" {
			turns++
		}
		heard = heard || one.Role == "tool" && strings.Contains(string(m), "recorded hello")
	}
	var tools []struct {
		Function struct {
			Name       string
			Parameters struct{ Properties map[string]any }
		}
	}
	if err := json.Unmarshal(c.Tools, &tools); err != nil {
		return nil, refuse("tools: %v", err)
	}
	tool, shell, argument := "", "", ""
	for _, f := range tools {
		if f.Function.Parameters.Properties["text"] != nil && strings.HasSuffix(f.Function.Name, "record") {
			tool = f.Function.Name
		}
		for _, a := range []string{"command", "cmd", "commands"} {
			if _, ok := f.Function.Parameters.Properties[a]; ok && (shell == "" || f.Function.Name == "bash") {
				shell, argument = f.Function.Name, a
			}
		}
	}
	name, args := "", map[string]any{}
	switch {
	case turns == 0 && tool == "":
		return nil, refuse("the server's tool is not offered: %s", c.Tools)
	case turns == 0:
		name, args["text"] = tool, "hello"
	case turns == 1 && !heard:
		return nil, refuse("its result did not come: %s", c.Messages[len(c.Messages)-1])
	case turns == 1:
		const write = "echo 'Hello, world!' > hello.txt"
		name, args[argument], args["description"] = shell, write, "write"
		if argument == "commands" {
			args = map[string]any{argument: []string{write}}
		}
	default:
		return &schema.Reply{Message: json.RawMessage(`{"role":"assistant","content":"Done."}`), FinishReason: "stop"}, nil
	}
	arguments, err := json.Marshal(args)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(string(arguments))
	if err != nil {
		return nil, err
	}
	return &schema.Reply{FinishReason: "tool_calls", Message: json.RawMessage(fmt.Sprintf(
		`{"role":"assistant","content":null,"tool_calls":[{"id":"c%d","type":"function","function":{"name":%q,"arguments":%s}}]}`, turns, name, text))}, nil
}
