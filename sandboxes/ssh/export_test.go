package ssh

import "time"

// LoginWithin sets the limit of a login.
func (b *Backend) LoginWithin(d time.Duration) { b.login = d }
