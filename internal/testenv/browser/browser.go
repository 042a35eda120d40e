// Package browser opens pages in Chromium for tests.
package browser

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/dom"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/cdproto/target"
	"github.com/chromedp/chromedp"

	"github.com/turngate/turngate/internal/harness"
	"github.com/turngate/turngate/internal/testenv"
)

// Page is a page of a browser of its own.
type Page struct {
	t   testing.TB
	ctx context.Context
}

// Open opens an empty page of this size in pixels. It ends with the test, which fails
// if a script of the page fails or the page violates its security policy.
func Open(t testing.TB, width, height int) *Page {
	t.Helper()
	path, err := exec.LookPath("chromium")
	testenv.Need(t, "browser", err)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.WSURLReadTimeout(shownWithin))
	ctx, stop := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(stop)
	return open(t, ctx).sized(width, height)
}

// Another opens another page of this browser. It has its own cookies and connections, of
// which a browser has few to one host for the pages that share them.
func (p *Page) Another(width, height int) *Page {
	p.t.Helper()
	in := cdp.WithExecutor(p.ctx, chromedp.FromContext(p.ctx).Browser)
	profile, err := target.CreateBrowserContext().Do(in)
	harness.Must(p.t, err)
	id, err := target.CreateTarget("about:blank").WithBrowserContextID(profile).WithNewWindow(true).Do(in) // a new profile has no window for a tab
	harness.Must(p.t, err)
	return open(p.t, p.ctx, chromedp.WithTargetID(id)).sized(width, height)
}

func open(t testing.TB, in context.Context, options ...chromedp.ContextOption) *Page {
	t.Helper()
	ctx, stop := chromedp.NewContext(in, options...)
	t.Cleanup(stop)
	chromedp.ListenTarget(ctx, func(ev any) {
		switch e := ev.(type) {
		case *runtime.EventExceptionThrown:
			t.Errorf("a script of the page failed: %s", e.ExceptionDetails.Error())
		case *log.EventEntryAdded:
			if e.Entry.Level == log.LevelError && e.Entry.Source == log.SourceSecurity {
				t.Errorf("the page violates its policy: %s", e.Entry.Text)
			}
		}
	})
	harness.Must(t, chromedp.Run(ctx)) // the browser ends with the context of the first run
	return &Page{t, ctx}
}

// sized gives the page a size in pixels.
func (p *Page) sized(width, height int) *Page {
	p.t.Helper()
	p.Do(chromedp.EmulateViewport(int64(width), int64(height)))
	return p
}

// Do acts in the page.
func (p *Page) Do(actions ...chromedp.Action) {
	p.t.Helper()
	ctx, stop := context.WithTimeout(p.ctx, shownWithin)
	defer stop()
	if err := chromedp.Run(ctx, actions...); err != nil {
		p.t.Fatalf("%v; the page has %q", err, p.Text())
	}
}

// Offline cuts the network of the page, or ends the cut. It fails if requests of the page
// are not cut.
func (p *Page) Offline(cut bool) {
	p.t.Helper()
	var is bool
	p.Do(network.EmulateNetworkConditions(cut, 0, -1, -1),
		chromedp.Evaluate(`fetch(location.pathname).then(() => false, () => true)`, &is, func(e *runtime.EvaluateParams) *runtime.EvaluateParams { return e.WithAwaitPromise(true) }))
	if is != cut {
		p.t.Errorf("a request of the page is cut: %v, want %v", is, cut)
	}
}

// Text returns the beginning of the text of the page.
func (p *Page) Text() (text string) {
	ctx, stop := context.WithTimeout(p.ctx, 10*time.Second)
	defer stop()
	_ = chromedp.Run(ctx, chromedp.Evaluate(`document.body.innerText.slice(0, 1000)`, &text)) // an empty text for a page that is gone
	return text
}

// shownWithin is the time for a page to show a thing. Another worker takes a rollout over
// after up to 90 s, and a busy machine is slower.
const shownWithin = 5 * time.Minute

// Shows waits until an expression of JavaScript is true, also while the page loads.
func (p *Page) Shows(expression string) {
	p.t.Helper()
	defer func() {
		if p.t.Failed() {
			p.t.Logf("the page has %q", p.Text())
		}
	}()
	harness.Eventually(p.t, expression, shownWithin, func() bool {
		ctx, stop := context.WithTimeout(p.ctx, time.Minute)
		defer stop()
		var is bool
		return chromedp.Run(ctx, chromedp.Evaluate(expression, &is)) == nil && is
	})
}

// named returns the roles of which each node must have a name, for people who cannot see
// the page.
func named() []string {
	return []string{"RootWebArea", "button", "link", "textbox", "searchbox", "combobox", "listbox", "checkbox", "radio", "spinbutton", "slider", "switch", "tab", "dialog", "image", "heading"}
}

// Accessible checks the accessibility tree of the page: it has a main part, and each
// control, image and heading has a name.
func (p *Page) Accessible() {
	p.t.Helper()
	type value struct {
		Value any `json:"value"`
	}
	var tree struct {
		Nodes []struct {
			Ignored bool  `json:"ignored"`
			Role    value `json:"role"`
			Name    value `json:"name"`
			Element int   `json:"backendDOMNodeId"`
		} `json:"nodes"`
	}
	p.Do(chromedp.ActionFunc(func(ctx context.Context) error {
		return cdp.Execute(ctx, "Accessibility.getFullAXTree", nil, &tree) // the typed function knows not all properties
	}))
	main := 0
	for _, n := range tree.Nodes {
		role, _ := n.Role.Value.(string)
		name, _ := n.Name.Value.(string)
		switch {
		case n.Ignored:
		case role == "main":
			main++
		case slices.Contains(named(), role) && strings.TrimSpace(name) == "":
			var source string
			_ = chromedp.Run(p.ctx, chromedp.ActionFunc(func(ctx context.Context) (err error) { // for people; the node may be gone
				source, err = dom.GetOuterHTML().WithBackendNodeID(cdp.BackendNodeID(n.Element)).Do(ctx)
				return err
			}))
			p.t.Errorf("a %s has no name: %.300s", role, source)
		}
	}
	if main != 1 {
		p.t.Errorf("the page has %d main parts, want 1, among %d nodes", main, len(tree.Nodes))
	}
}

// Picture checks that the page is accessible, and keeps a picture of it in the folder
// TURNGATE_SCREENSHOTS, if that is set.
func (p *Page) Picture(name string) {
	p.t.Helper()
	p.Accessible()
	dir := os.Getenv("TURNGATE_SCREENSHOTS")
	if dir == "" {
		return
	}
	var png []byte
	p.Do(chromedp.CaptureScreenshot(&png))
	harness.Must(p.t, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
}
