// Package crash holds the places at which tests make a process die, or break
// one of its rules. In an ordinary build both functions are empty and cost
// nothing; with the build tag "faults" they do what the environment says.
package crash

// Environment variables of a build with faults.
const (
	EnvPoint = "TURNGATE_CRASH"  // the point at which this process kills itself
	EnvBreak = "TURNGATE_MUTANT" // the rule that this process breaks
	EnvSkew  = "TURNGATE_SKEW"   // how far its clock is wrong, as a duration
)

// Points lists the places where a process can be made to die: between every
// two steps of a rollout's life that somebody else can see.
func Points() []string {
	return []string{
		"claim.before", "claim.after",
		"commit.before", "commit.between", "commit.after", "commit.acked", "commit.hinted",
		"return.before", "return.after",
		"cancel.before", "cancel.marked", "cancel.committed",
		"bury.before", "bury.copied", "bury.termed",
		"janitor.before", "janitor.republished",
		"trainer.accept", "trainer.beat", "trainer.delta", "trainer.final", "trainer.fault", // each after the frame is sent
	}
}

// Mutants are the rules that can be broken, by the invariant that must then
// be seen to be violated.
func Mutants() map[string]string {
	return map[string]string{
		"I1": "results are written without looking whether the rollout is still this worker's",
		"I2": "the state's attempt is not what the result says",
		"I3": "a stream that was begun goes on with another generation",
		"I4": "tries are not counted",
		"I5": "sandboxes are not closed",
		"I6": "a worker that was fenced goes on telling events",
	}
}
