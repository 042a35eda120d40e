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
	trainerQueue      int64
	trainerQueueMB    int64
	trainerBundleMB   int64
	trainerArtifactMB int64
	trainerRecordMB   int64
}

func (f *trainerFlags) add(fl *pflag.FlagSet) {
	d := broker.DefaultTrainer()
	fl.Int64Var(&f.trainerQueue, "trainer-queue", d.MaxQueue, "most requests of a new trainer in its queue")
	fl.Int64Var(&f.trainerQueueMB, "trainer-queue-mb", d.MaxQueueBytes>>20, "most MB of the requests of a new trainer in its queue")
	fl.Int64Var(&f.trainerBundleMB, "trainer-bundle-mb", d.MaxBundleBytes>>20, "most MB of a new trainer's task bundles and large answers")
	fl.Int64Var(&f.trainerArtifactMB, "trainer-artifact-mb", d.MaxArtifactBytes>>20, "most MB of the artifacts and large calls of a new trainer's rollouts")
	fl.Int64Var(&f.trainerRecordMB, "trainer-record-mb", 0, fmt.Sprintf("MB of a new trainer's states and results above which no more of its requests are taken (0: %d, or without bound if --retention is 0)", d.MaxRecordBytes>>20))
}

func (f *trainerFlags) check() error {
	return errors.Join(atLeast("trainer-queue", f.trainerQueue, 1), atLeast("trainer-queue-mb", f.trainerQueueMB, 1), atLeast("trainer-bundle-mb", f.trainerBundleMB, 1), atLeast("trainer-artifact-mb", f.trainerArtifactMB, 1),
		atLeast("trainer-record-mb", f.trainerRecordMB, 0))
}

// settings returns the bounds. Records that are kept for ever have none by default:
// their bytes never become less.
func (f *trainerFlags) settings(retention time.Duration) broker.TrainerSettings {
	records := f.trainerRecordMB << 20
	if records == 0 && retention == 0 {
		records = broker.AnyRecordBytes
	}
	return broker.TrainerSettings{MaxQueue: f.trainerQueue, MaxQueueBytes: f.trainerQueueMB << 20, MaxBundleBytes: f.trainerBundleMB << 20, MaxArtifactBytes: f.trainerArtifactMB << 20, MaxRecordBytes: records}
}
