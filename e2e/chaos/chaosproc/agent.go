package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/turngate/turngate/e2e/chaos/history"
	"github.com/turngate/turngate/internal/backends/dummy"
	"github.com/turngate/turngate/schema"
)

// inBox has the programs in the sandboxes of a worker.
type inBox struct {
	rec    *record
	census string
}

// count reports this agent to the run. The connection tells the run how long the
// agent lives, also if its process is killed.
func (b inBox) count(p *dummy.Proc) (io.Closer, error) {
	c, err := net.Dial("unix", "@"+b.census)
	if err != nil {
		return nil, err
	}
	_, err = c.Write(append(mustJSON(hello(p)), '\n'))
	return c, err
}

func hello(p *dummy.Proc) history.Hello {
	return history.Hello{Rollout: schema.ID(p.Env["CHAOS_ID"]), Box: filepath.Base(p.Files.Name())}
}

// poison is an agent that kills its own worker.
func (b inBox) poison(_ context.Context, p *dummy.Proc) int {
	if _, err := b.count(p); err != nil {
		fmt.Fprintln(p.Stderr, err)
		return 1
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// agent asks its questions one after the other and retries as SDKs do.
func (b inBox) agent(ctx context.Context, p *dummy.Proc) int {
	c, err := b.count(p)
	if err != nil {
		fmt.Fprintln(p.Stderr, err)
		return 1
	}
	defer c.Close()
	calls, _ := strconv.Atoi(p.Env["CHAOS_CALLS"])
	for i := range calls {
		ok := false
		for try := 0; try < 4 && !ok && ctx.Err() == nil; try++ {
			if ok = b.ask(ctx, p, i) == nil; !ok && !sleep(ctx, 300*time.Millisecond) {
				return 1
			}
		}
		if !ok {
			fmt.Fprintln(p.Stderr, "no answer")
			return 1
		}
		if !sleep(ctx, 100*time.Millisecond) {
			return 1
		}
	}
	return 0
}

// stubborn asks until a file of the run tells it to stop, even after refusals.
func (b inBox) stubborn(ctx context.Context, p *dummy.Proc) int {
	c, err := b.count(p)
	if err != nil {
		fmt.Fprintln(p.Stderr, err)
		return 1
	}
	defer c.Close()
	for i := 0; !exists(filepath.Join(filepath.Dir(b.rec.file.Name()), "enough")); i++ {
		_ = b.ask(ctx, p, i)
		if !sleep(ctx, 100*time.Millisecond) {
			return 1
		}
	}
	return 0
}

var generation = regexp.MustCompile(`gen:([0-9a-f]+)`)

// ask asks one question once, and records the answer that it read.
func (b inBox) ask(ctx context.Context, p *dummy.Proc, i int) error {
	text, err := question(ctx, p, i)
	gens := map[string]bool{}
	for _, m := range generation.FindAllStringSubmatch(text, -1) {
		gens[m[1]] = true
	}
	if err == nil && len(gens) == 0 {
		err = fmt.Errorf("an answer without a generation: %q", text)
	}
	if len(gens) > 0 {
		at := hello(p)
		b.rec.write(history.Read{Rollout: at.Rollout, Box: at.Box, Question: i, Gens: slices.Sorted(maps.Keys(gens)), Whole: err == nil, Text: text})
	}
	return err
}

// question returns the text of the answer, also of the part before an error.
func question(ctx context.Context, p *dummy.Proc, i int) (string, error) {
	stream := p.Env["CHAOS_STREAM"] != ""
	body := mustJSON(map[string]any{"model": "policy", "stream": stream, "messages": []any{map[string]string{"role": "user", "content": fmt.Sprintf("question %d", i)}}})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.Env["OPENAI_BASE_URL"]+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+p.Env["OPENAI_API_KEY"])
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %d", res.StatusCode)
	}
	type choices struct {
		Choices []struct{ Message, Delta struct{ Content string } }
	}
	var got choices
	if !stream {
		if err := json.NewDecoder(res.Body).Decode(&got); err != nil {
			return "", err
		}
		if len(got.Choices) == 0 {
			return "", errors.New("no choice")
		}
		return got.Choices[0].Message.Content, nil
	}
	var text strings.Builder
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case !ok:
		case data == "[DONE]":
			return text.String(), nil
		default:
			got = choices{}
			if err := json.Unmarshal([]byte(data), &got); err != nil {
				return text.String(), err
			}
			if len(got.Choices) > 0 {
				text.WriteString(got.Choices[0].Delta.Content)
			}
		}
	}
	return text.String(), errors.Join(lines.Err(), io.ErrUnexpectedEOF)
}
