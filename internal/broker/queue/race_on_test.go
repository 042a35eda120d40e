//go:build race

package queue_test

// underRace tells that the race detector is on, with which a test takes about ten
// times as long.
const underRace = true
