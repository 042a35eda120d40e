package broker

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// ShownURL returns URLs of NATS for output and logs: without users, passwords and tokens.
// A token is in the place of a user, which url.URL.Redacted keeps.
func ShownURL(list string) string {
	var out []string
	for one := range strings.SplitSeq(list, ",") {
		one = strings.TrimSpace(one)
		if at := strings.LastIndexByte(one, '@'); at >= 0 {
			scheme, _, ok := strings.Cut(one[:at], "://")
			one = one[at+1:]
			if ok {
				one = scheme + "://" + one
			}
		}
		out = append(out, one)
	}
	return strings.Join(out, ",")
}

// ConnectError is the error of a connection to URLs of NATS, without their passwords.
func ConnectError(list string, err error) error {
	var wrong *url.Error
	if errors.As(err, &wrong) { // it has the URL as it was given
		err = errors.New("not valid: want a URL such as nats://127.0.0.1:4222")
	}
	return fmt.Errorf("connect to NATS at %s: %w", ShownURL(list), err)
}
