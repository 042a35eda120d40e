package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/turngate/turngate/internal/rawjson"
)

// Protection is the extent to which a server separates its clients.
type Protection int

// Protections of a server, as one connection sees them.
const (
	// ProtectionAccounts: this client is in the account of its role, with the
	// permissions of the role.
	ProtectionAccounts Protection = iota
	// ProtectionNone: every client may do everything, such as read and forge the
	// results of all trainers.
	ProtectionNone
	// ProtectionOther: clients log in, but this one is not in the account of its
	// role, or has no limits there. The accounts of turngate protect nothing.
	ProtectionOther
)

// Protection asks the server for the account and the permissions of this
// connection, which has the credential of a role. account is empty if the server
// does not say.
func (b *Broker) Protection(ctx context.Context, role, name string) (p Protection, account string, err error) {
	answer, refused, err := b.userInfo(ctx)
	switch {
	case err != nil:
		return 0, "", err
	case refused: // the roles of turngate may ask
		return ProtectionOther, "", nil
	}
	return protectionOf(answer, role, name)
}

// userInfo asks the server for its description of this client. refused tells that this
// client may not ask.
func (b *Broker) userInfo(ctx context.Context) (answer []byte, refused bool, err error) {
	answers, err := b.bulk.SubscribeSync(b.bulk.NewInbox())
	if err != nil {
		return nil, false, fmt.Errorf("ask for the permissions of this client: %w", err)
	}
	defer func() { _ = answers.Unsubscribe() }()
	var asked time.Time
	for {
		if time.Since(asked) >= time.Second { // a message is lost with its connection
			err := b.bulk.PublishRequest(userInfo, answers.Subject, nil)
			if err != nil && !errors.Is(err, nats.ErrReconnectBufExceeded) { // it is connecting again
				return nil, false, fmt.Errorf("ask for the permissions of this client: %w", err)
			}
			asked = time.Now()
		}
		m, err := answers.NextMsg(50 * time.Millisecond)
		switch {
		case err == nil:
			return m.Data, false, nil
		case errors.Is(b.bulk.LastError(), nats.ErrPermissionViolation):
			return nil, true, nil
		case !errors.Is(err, nats.ErrTimeout) || ctx.Err() != nil:
			return nil, false, fmt.Errorf("ask for the permissions of this client: %w", errors.Join(err, ctx.Err()))
		}
	}
}

func protectionOf(answer []byte, role, name string) (p Protection, account string, err error) {
	var info struct {
		Data struct {
			User        string          `json:"user"`
			Account     string          `json:"account"`
			Permissions json.RawMessage `json:"permissions"`
		} `json:"data"`
		Error *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(answer, &info); err != nil {
		return 0, "", fmt.Errorf("read the permissions of this client: %w", rawjson.Plain(err))
	}
	limited := role == RoleAdmin || len(info.Data.Permissions) > 0
	switch {
	case info.Error != nil:
		return 0, "", fmt.Errorf("read the permissions of this client: the server answers %s", info.Error.Description)
	case info.Data.User == "":
		return ProtectionNone, info.Data.Account, nil
	case info.Data.Account == accountOf(role, name) && limited:
		return ProtectionAccounts, info.Data.Account, nil
	default:
		return ProtectionOther, info.Data.Account, nil
	}
}
