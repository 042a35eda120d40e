package box

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
)

// errStranger means that the other side does not know the secret.
var errStranger = errors.New("the other side does not know the secret")

const nonceLen = 32

// handshake proves the secret in both directions, so that a process that finds
// the socket can pose neither as the worker nor as the box. Each side sends a
// nonce and then an HMAC over its role and both nonces. It waits for the other
// side until the connection is closed.
func handshake(c io.ReadWriter, secret []byte, role string) error {
	mine := make([]byte, nonceLen)
	_, _ = rand.Read(mine) // never fails
	if _, err := c.Write(mine); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	theirs := make([]byte, nonceLen)
	if _, err := io.ReadFull(c, theirs); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	workerNonce, boxNonce, other := mine, theirs, roleBox
	if role == roleBox {
		workerNonce, boxNonce, other = theirs, mine, roleWorker
	}
	if _, err := c.Write(proof(secret, role, workerNonce, boxNonce)); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	got := make([]byte, sha256.Size)
	if _, err := io.ReadFull(c, got); err != nil {
		return fmt.Errorf("handshake: %w", err)
	}
	if !hmac.Equal(got, proof(secret, other, workerNonce, boxNonce)) {
		return errStranger
	}
	return nil
}

const (
	roleWorker = "worker"
	roleBox    = "box"
)

func proof(secret []byte, role string, nonces ...[]byte) []byte {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(role))
	for _, n := range nonces {
		m.Write(n)
	}
	return m.Sum(nil)
}
