package subjects

import (
	"strconv"
	"strings"

	"github.com/turngate/turngate/schema"
)

// Requests that cannot run now on every worker are parked: they are on other
// subjects of their trainer's queue than the lanes, with a consumer for each class
// in each lane.

// ClassDelay is the class of requests that wait for their delay. Every other
// class is that of the requests with equal needs.
const ClassDelay = "delay"

// Parked is the subject of a parked request.
func Parked(lane int, class string, id schema.ID) string {
	return strings.TrimSuffix(ClassFilter(lane, id.Trainer(), class), "*") + string(id)
}

// ClassFilter selects the parked requests of a class in a lane.
func ClassFilter(lane int, trainer, class string) string {
	return "parked." + trainer + ".p" + strconv.Itoa(lane) + "." + class + ".*"
}

// ParkedOf selects the parked requests of a rollout.
func ParkedOf(id schema.ID) string { return "parked." + id.Trainer() + ".*.*." + string(id) }

// ParkedFilter selects all parked requests of a trainer.
func ParkedFilter(trainer string) string { return "parked." + trainer + ".>" }

// ConsumerOfClass is the durable consumer of a class in a lane of a trainer's
// queue.
func ConsumerOfClass(lane int, class string) string { return ConsumerOf(lane) + "-" + class }

// ParseConsumer reads the lane and the class from the name of a consumer. The
// class is empty for the consumer of a lane.
func ParseConsumer(name string) (lane int, class string, ok bool) {
	if name == ConsumerPlain {
		return DefaultLane, "", true
	}
	rest, ok := strings.CutPrefix(name, ConsumerPlain+"-p")
	if !ok || rest == "" || rest[0] < '0' || rest[0] >= '0'+Lanes || len(rest) > 1 && rest[1] != '-' {
		return 0, "", false
	}
	if lane = int(rest[0] - '0'); len(rest) > 1 {
		class = rest[2:]
	}
	return lane, class, len(rest) == 1 || class != ""
}

// ParseParked reads the lane and the class from the subject of a parked request.
func ParseParked(subject string) (lane int, class string, ok bool) {
	t := strings.Split(subject, ".")
	if len(t) != 5 || t[0] != "parked" || len(t[2]) != 2 || t[2][0] != 'p' || t[2][1] < '0' || t[2][1] >= '0'+Lanes {
		return 0, "", false
	}
	return int(t[2][1] - '0'), t[3], true
}

// LaneSubject is the subject on which a request of a queue was submitted: subject
// itself, or the lane of a parked request.
func LaneSubject(subject string) string {
	t := strings.Split(subject, ".")
	if len(t) != 5 || t[0] != "parked" {
		return subject
	}
	return Requests + "." + t[2] + "." + t[1]
}
