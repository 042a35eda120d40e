package schema

import (
	"fmt"
	"strings"
	"time"
)

// Values of WaitEvent.For.
const (
	WaitWorker   = "worker"   // the request is in the queue; no worker has taken it
	WaitSandbox  = "sandbox"  // the image is being pulled or built, or the sandbox starts
	WaitTrainer  = "trainer"  // a model call: the trainer is away, or cannot answer now
	WaitVerify   = "verify"   // no trainer verifies the rollout now
	WaitUpstream = "upstream" // a model call: the upstream cannot answer now
	WaitHold     = "hold"     // a model call: the trainer holds the rollout
	WaitSlot     = "slot"     // a model call: gate.max_parallel others are open
	WaitServer   = "server"   // the whole rollout: the worker cannot reach NATS
)

// WaitEvent tells that a rollout waits for something outside of it. It is sent
// when the wait begins, when the reason changes, every 30 s, and with Ended when
// the wait is over.
type WaitEvent struct {
	For   string `json:"for"`             // the thing that it waits for
	Name  string `json:"name,omitempty"`  // such as the name of an upstream or an image
	Call  int    `json:"call,omitempty"`  // the model call that waits; 0: all of the rollout
	MS    int64  `json:"ms,omitempty"`    // duration of the wait so far, in milliseconds
	Tries int    `json:"tries,omitempty"` // number of failed tries
	Note  string `json:"note,omitempty"`  // details, such as "2 workers, no slot is free"; may have several lines
	Fault *Fault `json:"fault,omitempty"` // of the last try that failed
	Ended bool   `json:"ended,omitempty"`
}

// String describes the wait in a few words.
func (w *WaitEvent) String() string {
	var b strings.Builder
	if w.Ended {
		b.WriteString("no longer waits for ")
	} else {
		b.WriteString("waits for ")
	}
	switch w.For {
	case WaitServer:
		b.WriteString("the NATS server")
	case WaitHold:
		b.WriteString("the trainer to resume it")
	case WaitSlot:
		b.WriteString("another of its model calls to end")
	case WaitVerify:
		b.WriteString("a verdict")
	case WaitUpstream:
		b.WriteString("upstream")
	default:
		b.WriteString("a " + w.For)
	}
	if w.Name != "" {
		b.WriteString(" " + w.Name)
	}
	if w.Call > 0 {
		fmt.Fprintf(&b, " (call %d)", w.Call)
	}
	if w.MS >= 1000 {
		fmt.Fprintf(&b, ", %s", (time.Duration(w.MS) * time.Millisecond).Round(time.Second))
	}
	if w.Note != "" {
		b.WriteString(": " + w.Note)
	}
	if w.Fault != nil && !w.Ended {
		b.WriteString(": " + w.Fault.Message)
	}
	return b.String()
}

func (w *WaitEvent) validate() error {
	if err := checkOneOf("wait.for", w.For, WaitWorker, WaitSandbox, WaitTrainer, WaitVerify, WaitUpstream, WaitHold, WaitSlot, WaitServer); err != nil {
		return err
	}
	if err := checkText("wait.name", w.Name, maxName); err != nil {
		return err
	}
	if err := checkText("wait.note", w.Note, maxText); err != nil {
		return err
	}
	if w.Fault != nil {
		return w.Fault.check()
	}
	return nil
}
