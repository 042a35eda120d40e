// Package jobs runs many tasks as one job and keeps the results in a folder.
//
// Find and Choice select tasks. Begin makes the job's folder, with a trial for each
// rollout of each task, and Work.Run submits the rollouts, answers their model calls
// and stores the results; workers elsewhere run them. A job that was stopped or
// killed goes on with Open and Resume. `turngate run` is this package with flags.
//
// The folder has the layout of Harbor's jobs (https://harborframework.com), so
// Harbor's viewer can open it. A trial's result.json is written last: if the file
// exists, the trial has ended. Package recorded reads the rollouts of such folders.
package jobs
