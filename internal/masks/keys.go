// Package masks hides keys in texts that others wrote: agents, models, tools, and services that
// quote the key of a request in their answer.
package masks

import (
	"bytes"
	"slices"
	"sync"
)

const (
	masked = "[key]"
	// shortestKey is the length from which a key is a secret. Shorter ones are
	// placeholders such as "none", which are words of many texts.
	shortestKey = 8
	// shortestPart is the length from which a part of a key is masked, too, since a
	// text may be cut in the middle of a key. In a random key of the gate, shorter
	// parts are of no use to others.
	shortestPart = 16
)

// Keys are the keys to hide. It is safe for concurrent use.
type Keys struct {
	mu   sync.RWMutex
	keys []string
}

// Of returns keys; short ones and empty ones are left out.
func Of(keys ...string) *Keys {
	k := &Keys{}
	for _, key := range keys {
		k.Add(key)
	}
	return k
}

// Add adds a key, unless it is so short that it is a word of many texts.
func (k *Keys) Add(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(key) >= shortestKey && !slices.Contains(k.keys, key) {
		k.keys = append(slices.Clip(k.keys), key)
	}
}

// All returns the keys.
func (k *Keys) All() []string {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.keys
}

// Bytes masks the keys in a text and keeps its length. It copies a text that it
// changes.
func (k *Keys) Bytes(text []byte) (out []byte, changed bool) {
	out = text
	for _, key := range k.All() {
		for _, p := range NewSearch(key).Parts(out, true) {
			if !changed {
				out, changed = bytes.Clone(text), true
			}
			p.Hide(out)
		}
	}
	return out, changed
}

// Text is Bytes for a string.
func (k *Keys) Text(t string) string {
	if len(t) < shortestKey || len(k.All()) == 0 {
		return t
	}
	if out, changed := k.Bytes([]byte(t)); changed {
		return string(out)
	}
	return t
}
