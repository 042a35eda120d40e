// Package enroll admits hosts without a credential as machines, after the consent of an
// operator: the host makes a key and shows a code that is derived from it, and the holder of
// the server's folder of credentials approves the code. docs/machine.md describes the
// messages.
package enroll
