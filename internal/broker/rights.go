package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/turngate/turngate/internal/rawjson"
)

// Rights are the subjects on which a connection may publish. The zero value allows
// nothing.
type Rights struct {
	all         bool
	allow, deny []string // patterns; allow may be empty with deny: all others
}

// Rights asks the server for the rights of this connection.
func (b *Broker) Rights(ctx context.Context) (Rights, error) {
	data, refused, err := b.userInfo(ctx)
	if err != nil || refused {
		return Rights{}, err
	}
	return rightsIn(data)
}

func rightsIn(answer []byte) (Rights, error) {
	var info struct {
		Data struct {
			Permissions *struct {
				Publish *struct {
					Allow []string `json:"allow"`
					Deny  []string `json:"deny"`
				} `json:"publish"`
			} `json:"permissions"`
		} `json:"data"`
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(answer, &info); err != nil {
		return Rights{}, fmt.Errorf("read the permissions of this client: %w", rawjson.Plain(err))
	}
	if info.Error != nil {
		return Rights{}, fmt.Errorf("read the permissions of this client: the server answers %s", info.Error.Description)
	}
	p := info.Data.Permissions
	if p == nil || p.Publish == nil {
		return Rights{all: true}, nil
	}
	return Rights{all: len(p.Publish.Allow) == 0, allow: p.Publish.Allow, deny: p.Publish.Deny}, nil
}

// May reports whether the connection may publish on all subjects of a pattern.
func (r Rights) May(pattern string) bool {
	if slices.ContainsFunc(r.deny, func(d string) bool { return overlap(d, pattern) }) {
		return false
	}
	return r.all || slices.ContainsFunc(r.allow, func(a string) bool { return covers(a, pattern) })
}

// covers reports whether every subject of b is one of a.
func covers(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i, t := range as {
		switch {
		case t == ">":
			return i < len(bs)
		case i == len(bs) || bs[i] == ">" || t != "*" && t != bs[i]:
			return false
		}
	}
	return len(as) == len(bs)
}

// overlap reports whether a subject is one of both patterns.
func overlap(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		switch {
		case as[i] == ">" || bs[i] == ">":
			return true
		case as[i] != "*" && bs[i] != "*" && as[i] != bs[i]:
			return false
		}
	}
	return len(as) == len(bs)
}
