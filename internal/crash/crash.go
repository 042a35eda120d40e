// Package crash lets tests kill a process between two steps. In an ordinary build
// Here does nothing. In a build with the tag "faults" the environment variable
// EnvPoint selects the point at which the process kills itself.
//
// The name of a point is a literal of the form "group.step", and a point has one
// call of Here. A test lists the points from the source.
package crash

// EnvPoint is the environment variable with the name of a point.
const EnvPoint = "TURNGATE_CRASH"
