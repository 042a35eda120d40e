package ssh

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/turngate/turngate/internal/backends/far"
	"github.com/turngate/turngate/internal/plain"
)

// folder is the cache folder on the other side, as shell text. Its user alone may
// enter it; the files in it can be read by the users of a sandbox.
const folder = `umask 077; r="${XDG_CACHE_HOME:-$HOME/.cache}/turngate"; d="$r/ssh"; `

// said is the first line of the other side after its mark, or far.Ready.
const (
	saidMissing = "missing" // the program is not there; the system and the machine follow
	saidStored  = "stored"  // the program is stored now
	saidForeign = "foreign" // others may write to a folder, which follows
	saidNoexec  = "noexec"  // programs do not run in a folder, which follows
)

// guard ends a script if another user owns the cache folder or may write to it.
const guard = `for p in "$r" "$d"; do [ -d "$p" ] || continue; o=; [ -O "$p" ] && o=yes; case $(ls -ldL "$p") in ?????w*|????????w*) o=;; esac; ` +
	`[ "$o" ] || { echo "` + far.Mark + saidForeign + ` $p"; exit 1; }; done; `

// startScript starts the program with this digest, with flags before its folder and arguments
// after it, or says that it is missing.
func startScript(digest, flags, args string) string {
	return folder + guard + `f="$d/turngate-` + digest + `"; if [ -s "$f" ]; then [ -x "$f" ] && exec "$f" ` + far.Command + flags + ` "$d"` + args + `; echo "` + far.Mark + saidNoexec + ` $d"; ` +
		`else echo "` + far.Mark + saidMissing + ` $(uname -s) $(uname -m)"; fi`
}

// storeScript stores its input as the program with this digest.
func storeScript(digest string) string {
	return folder + `mkdir -p "$d" || exit 1; ` + guard + `t=$(mktemp "$d/new.XXXXXXXX") || exit 1; cat >"$t"; ` +
		`case $(sha256sum <"$t") in ` + digest + `*) chmod 755 "$t" && { sync "$t" || sync; } && mv -f "$t" "$d/turngate-` + digest + `" && echo "` + far.Mark + saidStored + `";; ` +
		`*) echo "the copy has another digest" >&2;; esac; rm -f "$t"`
}

// dial returns a line to Serve on the host. It brings the program if the host does
// not have it. log gets a line if files travel; nil drops it.
func (b *Backend) dial(ctx context.Context, h *host, log func(string)) (*line, error) {
	digest, err := b.program()
	if err != nil {
		return nil, err
	}
	l, missing, err := b.tryDial(ctx, h, digest)
	if err != nil || missing == "" {
		return l, err
	}
	leave, err := h.Travel(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	if l, missing, err = b.tryDial(ctx, h, digest); err != nil || missing == "" { // another line may have brought it
		return l, err
	}
	if err := far.Fits(missing, "ssh", "the host "+h.name+" is", "; take a host of that kind"); err != nil {
		return nil, err
	}
	if err := b.store(ctx, h, digest, log); err != nil {
		return nil, err
	}
	if l, missing, err = b.tryDial(ctx, h, digest); err == nil && missing != "" {
		err = fmt.Errorf("the host %s: the program is gone from the cache folder there", h.name)
	}
	return l, err
}

// attach returns a connection to the Serve that keeps the line of this name.
func (b *Backend) attach(ctx context.Context, h *host, name string) (far.Carrier, error) {
	digest, err := b.program()
	if err != nil {
		return nil, err
	}
	l, said, err := b.begin(ctx, h, startScript(digest, " "+far.AttachFlag, " "+name))
	if err != nil {
		return nil, err
	}
	if err := far.Attached(said); err != nil {
		l.End(ctx)
		return nil, fmt.Errorf("the host %s: %w", h.name, err)
	}
	return l, nil
}

// tryDial returns a line to Serve, or the system and machine of a host without the
// program.
func (b *Backend) tryDial(ctx context.Context, h *host, digest string) (_ *line, missing string, err error) {
	l, said, err := b.begin(ctx, h, startScript(digest, "", ""))
	if err != nil || said == far.Ready {
		return l, "", err
	}
	l.End(ctx)
	missing, ok := strings.CutPrefix(said, saidMissing+" ")
	if !ok {
		return nil, "", unexpected(h.name, said)
	}
	return nil, missing, nil
}

// unexpected returns the error for a first line that is not the wanted one.
func unexpected(host, said string) error {
	what, dir, _ := strings.Cut(plain.Line(said, far.MaxSays), " ")
	switch what {
	case saidForeign:
		return fmt.Errorf("the host %s: another user owns the folder %s or may write to it; remove it there, or run there: chmod go-w %s", host, dir, plain.Word(dir))
	case saidNoexec:
		return fmt.Errorf("the host %s: no program runs in the folder %s, perhaps because it is mounted with noexec; set XDG_CACHE_HOME there to a folder that allows programs", host, dir)
	}
	return fmt.Errorf("the host %s answers %q", host, plain.Line(said, far.MaxSays))
}

// begin starts a script and returns its first marked line. A login that takes too
// long is an error.
func (b *Backend) begin(ctx context.Context, h *host, script string) (*line, string, error) {
	leave, err := far.Enter(ctx, h.dials)
	if err != nil {
		return nil, "", err
	}
	defer leave()
	l, err := b.start(h, script)
	if err != nil {
		return nil, "", err
	}
	limited, cancel := context.WithTimeoutCause(ctx, b.login, fmt.Errorf("the host %s: the login there gives no answer within %s", h.name, b.login))
	defer cancel()
	said, err := l.Marked(limited)
	if err == nil && limited.Err() != nil { // the end of the context may have set a deadline
		err = context.Cause(limited)
	}
	if err != nil {
		l.End(limited)
		return nil, "", err
	}
	return l, said, nil
}

// store copies the program to the host.
func (b *Backend) store(ctx context.Context, h *host, digest string, log func(string)) error {
	f, err := os.Open(b.helper)
	if err != nil {
		return fmt.Errorf("read turngate's own program: %w", err)
	}
	defer f.Close()
	if log != nil {
		log("turngate travels to the host " + h.name)
	}
	l, err := b.start(h, storeScript(digest))
	if err != nil {
		return err
	}
	defer l.End(ctx)
	stop := context.AfterFunc(ctx, func() { _ = l.Conn.SetDeadline(time.Now()) })
	defer stop()
	if _, err := io.Copy(l.Conn, f); err != nil {
		return l.Broken(ctx)
	}
	if err := l.Conn.CloseWrite(); err != nil {
		return l.Broken(ctx)
	}
	said, err := l.Marked(ctx)
	if err == nil && said != saidStored {
		err = unexpected(h.name, said)
	}
	return err
}
