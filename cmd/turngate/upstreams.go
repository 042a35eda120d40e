package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/turngate/turngate/internal/rollout/models"
	"github.com/turngate/turngate/internal/strictyaml"
	"github.com/turngate/turngate/internal/upstream"
	"github.com/turngate/turngate/schema"
)

// upstreamConfig is an upstream in the file of --upstreams.
type upstreamConfig struct {
	URL           string   `yaml:"url"`
	KeyFile       string   `yaml:"key_file"`
	Model         string   `yaml:"model"`
	MaxTokens     int      `yaml:"max_tokens"`
	TopLogprobs   int      `yaml:"top_logprobs"`
	NoThinking    bool     `yaml:"no_thinking"`
	KeepReasoning bool     `yaml:"keep_reasoning"`
	Plain         bool     `yaml:"plain"`
	Version       string   `yaml:"version"`
	Trainers      []string `yaml:"trainers"`

	Price *upstream.Price `yaml:"price"`
}

// readUpstreams reads the file of --upstreams, by the names of the upstreams.
func readUpstreams(path string) (map[string]upstreamConfig, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the upstreams: %w", err)
	}
	var file map[string]upstreamConfig
	if err := strictyaml.Decode(data, &file); err != nil {
		return nil, usage("--upstreams: %s: %w", path, err)
	}
	return file, nil
}

// loadUpstreams reads the upstreams that a worker calls without the trainer.
func loadUpstreams(path string) ([]models.Upstream, error) {
	if path == "" {
		return nil, nil
	}
	file, err := readUpstreams(path)
	if err != nil {
		return nil, err
	}
	var all []models.Upstream
	for _, name := range slices.Sorted(maps.Keys(file)) {
		c := file[name]
		if err := schema.CheckToken("upstream", name); err != nil {
			return nil, usage("--upstreams: %s: %w", path, err)
		}
		for _, tid := range c.Trainers {
			if err := schema.CheckTrainer(tid); err != nil {
				return nil, usage("--upstreams: %s: %s: %w", path, name, err)
			}
		}
		key := ""
		if c.KeyFile != "" {
			data, err := os.ReadFile(c.KeyFile)
			if err != nil {
				return nil, fmt.Errorf("read the key of upstream %s: %w", name, err)
			}
			key = strings.TrimSpace(string(data))
		}
		if c.Price != nil {
			if err := c.Price.Validate(); err != nil {
				return nil, usage("--upstreams: %s: %s: %w", path, name, err)
			}
		}
		u, err := upstream.New(upstream.Config{Name: name, URL: c.URL, Key: key, Model: c.Model, MaxTokens: c.MaxTokens, TopLogprobs: c.TopLogprobs, NoThinking: c.NoThinking, KeepReasoning: c.KeepReasoning, Plain: c.Plain, Version: c.Version, Price: c.Price})
		if err != nil {
			return nil, usage("--upstreams: %s: %s: %w", path, name, err)
		}
		base := strings.TrimSuffix(strings.TrimSuffix(c.URL, "/"), "/v1")
		all = append(all, models.Upstream{Name: name, Trainers: c.Trainers, Answer: u.Answer, Look: u.Look, URL: base, Key: cmp.Or(key, "none")})
	}
	return all, nil
}
