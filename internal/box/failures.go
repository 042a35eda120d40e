package box

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"

	"github.com/turngate/turngate/schema"
)

// startError means that a command could not be started. The cause is in the
// task, not in turngate.
type startError struct{ arg, reason string }

func (e *startError) Error() string { return fmt.Sprintf("start %q: %s", e.arg, e.reason) }

// userError means that no command can run as a user.
type userError struct{ user, reason string }

func (e *userError) Error() string { return e.reason }

// tooLargeError means that a file exceeds the limit of the worker's request.
type tooLargeError struct {
	path  string
	limit int64
}

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("%s is larger than %d bytes", e.path, e.limit)
}

// linkError means that a path leads through a link that is not followed.
type linkError struct {
	path, link string
	reason     string
}

func (e *linkError) Error() string {
	return fmt.Sprintf("%s: the link %s is not followed: %s", e.path, e.link, e.reason)
}

var errOutside = errors.New("it leads outside of the folder")

// needsSandboxError means that an operation has no place without a sandbox.
type needsSandboxError struct{ operation string }

func (e *needsSandboxError) Error() string { return "without a sandbox there is no " + e.operation }

// maxMessage is the most bytes of an error's message: a path in it may be long.
const maxMessage = 1 << 10

func failureOf(err error) failure {
	f := failure{Code: failOther, Message: schema.Clip(err.Error(), maxMessage)}
	var start *startError
	var large *tooLargeError
	var user *userError
	var errno syscall.Errno
	var link *linkError
	var bare *needsSandboxError
	switch {
	case errors.As(err, &user):
		f.Code, f.Arg, f.Message = failNoUser, schema.Clip(user.user, maxMessage), schema.Clip(user.reason, maxMessage)
	case errors.As(err, &start):
		f.Code, f.Arg, f.Message = failNoCommand, schema.Clip(start.arg, maxMessage), schema.Clip(start.reason, maxMessage)
	case errors.As(err, &large):
		f.Code, f.Arg, f.Limit = failTooLarge, schema.Clip(large.path, maxMessage), large.limit
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		f.Code = failNotExist
	case errors.As(err, &link), errors.As(err, &bare), errors.Is(err, errOutside), errors.As(err, &errno) && !slices.Contains(ownFailures(), errno):
		f.Code = failRefused
	}
	return f
}

// ownFailures are errors of system calls that do not come from the files.
func ownFailures() []syscall.Errno {
	return []syscall.Errno{syscall.EIO, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EAGAIN}
}
