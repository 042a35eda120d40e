package broker

import (
	"errors"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
)

// serverLog logs the server's warnings and errors. A client can cause any number of
// some kinds, such as violations of permissions: of each kind it logs logBurst at once
// and then one in logEvery, with the number of the lines that it left out.
type serverLog struct {
	log    zerolog.Logger
	failed func(error) // called with an error of the store; nil: no one asks

	mu    sync.Mutex
	kinds map[string]*logKind // by format
}

type logKind struct {
	tokens  int
	filled  time.Time
	leftOut int
}

const (
	logBurst = 20
	logEvery = time.Second
	// maxLogKinds bounds the kinds; the server's formats are constants.
	maxLogKinds = 1000
)

// write logs a message unless there were too many of its kind.
func (l *serverLog) write(level zerolog.Level, format string, v ...any) {
	leftOut, ok := l.admit(format, time.Now())
	if !ok {
		return
	}
	e := l.log.WithLevel(level)
	if leftOut > 0 {
		e = e.Int("left_out", leftOut)
	}
	e.Msgf("nats-server: "+format, v...)
}

// admit reports whether a message of a kind is logged, and how many were left out
// before it.
func (l *serverLog) admit(kind string, now time.Time) (leftOut int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kinds[kind]
	if k == nil {
		if l.kinds == nil || len(l.kinds) >= maxLogKinds {
			l.kinds = map[string]*logKind{}
		}
		k = &logKind{tokens: logBurst, filled: now}
		l.kinds[kind] = k
	}
	if n := int(now.Sub(k.filled) / logEvery); n > 0 {
		k.tokens, k.filled = min(k.tokens+n, logBurst), k.filled.Add(time.Duration(n)*logEvery)
	}
	if k.tokens == 0 {
		k.leftOut++
		return 0, false
	}
	k.tokens--
	leftOut, k.leftOut = k.leftOut, 0
	return leftOut, true
}

// StoreError reports that the server cannot write a file of its store, for example since
// the disk is full. The stream concerned takes no more messages until the server starts
// again.
type StoreError struct{ Err error }

func (e *StoreError) Error() string {
	return "the NATS server cannot write its store: " + e.Err.Error()
}

func (e *StoreError) Unwrap() error { return e.Err }

// storeError returns the error among the values of a message that says that a file
// cannot be written; nil if there is none.
func storeError(v []any) error {
	for _, value := range v {
		err, ok := value.(error)
		if ok && slices.ContainsFunc([]error{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG, syscall.EROFS, syscall.EIO}, func(is error) bool { return errors.Is(err, is) }) {
			return &StoreError{Err: err}
		}
	}
	return nil
}

func (l *serverLog) Noticef(string, ...any)        {}
func (l *serverLog) Debugf(string, ...any)         {}
func (l *serverLog) Tracef(string, ...any)         {}
func (l *serverLog) Warnf(format string, v ...any) { l.write(zerolog.WarnLevel, format, v...) }
func (l *serverLog) Errorf(format string, v ...any) {
	l.write(zerolog.ErrorLevel, format, v...)
	if err := storeError(v); err != nil && l.failed != nil {
		l.failed(err)
	}
}
func (l *serverLog) Fatalf(format string, v ...any) { l.write(zerolog.ErrorLevel, format, v...) }
