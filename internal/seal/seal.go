// Package seal tells what this user wrote from what other people wrote. The owner of a file
// does not: an archive that a user unpacks belongs to the user.
package seal

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/turngate/turngate/internal/owned"
)

// Key seals data of one user.
type Key struct{ secret []byte }

// size is the length of a key in bytes.
const size = 32

// Open reads the key of a folder, which it makes on first use, with the mode 0600.
func Open(folder string) (*Key, error) {
	k, err := open(folder)
	if err != nil {
		return nil, fmt.Errorf("open the key with which jobs are sealed: %w", err)
	}
	return k, nil
}

func open(folder string) (*Key, error) {
	if err := owned.Folder(folder); err != nil {
		return nil, err
	}
	file := filepath.Join(folder, "seal.key")
	secret, err := owned.Read(file)
	if errors.Is(err, fs.ErrNotExist) {
		fresh := make([]byte, size)
		_, _ = rand.Read(fresh) // never fails
		if err := owned.Create(file, fresh); err != nil && !errors.Is(err, os.ErrExist) {
			return nil, err
		}
		secret, err = owned.Read(file) // another process may have made it
	}
	if err != nil {
		return nil, err
	}
	if len(secret) != size {
		return nil, fmt.Errorf("%s has %d bytes: want %d; remove it, and a new one is made", file, len(secret), size)
	}
	return &Key{secret}, nil
}

// Of returns the seal of data.
func (k *Key) Of(data []byte) string { return hex.EncodeToString(k.sum(data)) }

// Fits reports whether a seal is that of data.
func (k *Key) Fits(seal string, data []byte) bool {
	got, err := hex.DecodeString(seal)
	return err == nil && hmac.Equal(got, k.sum(data))
}

func (k *Key) sum(data []byte) []byte {
	h := hmac.New(sha256.New, k.secret)
	h.Write(data)
	return h.Sum(nil)
}
