package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/broker"
)

// trainerFlags are the bounds of trainers without settings of their own.
type trainerFlags struct {
	queue      int64
	queueMB    int64
	bundleMB   int64
	artifactMB int64
	recordMB   int64
}

func (f *trainerFlags) add(fl *pflag.FlagSet) {
	d := broker.DefaultTrainer()
	fl.Int64Var(&f.queue, "trainer-queue", d.MaxQueue, "most requests of a new trainer in its queue")
	fl.Int64Var(&f.queueMB, "trainer-queue-mb", d.MaxQueueBytes>>20, "most MB of the requests of a new trainer in its queue")
	fl.Int64Var(&f.bundleMB, "trainer-bundle-mb", d.MaxBundleBytes>>20, "most MB of a new trainer's task bundles and large answers")
	fl.Int64Var(&f.artifactMB, "trainer-artifact-mb", d.MaxArtifactBytes>>20, "most MB of the artifacts and large calls of a new trainer's rollouts")
	fl.Int64Var(&f.recordMB, "trainer-record-mb", 0, fmt.Sprintf("MB of a new trainer's states and results above which no more of its requests are taken (0: %d, or without bound if --retention is 0)", d.MaxRecordBytes>>20))
}

func (f *trainerFlags) check() error {
	return errors.Join(atLeast("trainer-queue", f.queue, 1), atLeast("trainer-queue-mb", f.queueMB, 1), atLeast("trainer-bundle-mb", f.bundleMB, 1), atLeast("trainer-artifact-mb", f.artifactMB, 1),
		atLeast("trainer-record-mb", f.recordMB, 0))
}

// settings returns the bounds. Records that are kept for ever have none by default:
// their bytes never become less.
func (f *trainerFlags) settings(retention time.Duration) broker.TrainerSettings {
	records := f.recordMB << 20
	if records == 0 && retention == 0 {
		records = broker.AnyRecordBytes
	}
	return broker.TrainerSettings{MaxQueue: f.queue, MaxQueueBytes: f.queueMB << 20, MaxBundleBytes: f.bundleMB << 20, MaxArtifactBytes: f.artifactMB << 20, MaxRecordBytes: records}
}
