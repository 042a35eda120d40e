package main

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/turngate/turngate/internal/broker"
	"github.com/turngate/turngate/internal/testenv"
)

// TestEachBoundOfATrainerHasAFlag sets all flags of `trainer add`, and of a worker
// for new trainers, which have the weight 1.
func TestEachBoundOfATrainerHasAFlag(t *testing.T) {
	var one settings
	cmd := &cobra.Command{}
	one.add(cmd)
	var new trainerFlags
	worker := pflag.NewFlagSet("worker", pflag.ContinueOnError)
	new.add(worker)
	for _, fl := range []*pflag.FlagSet{cmd.Flags(), worker} {
		n := 1
		fl.VisitAll(func(f *pflag.Flag) {
			n++
			if err := f.Value.Set(fmt.Sprint(n)); err != nil {
				t.Errorf("--%s: %v", f.Name, err)
			}
		})
	}
	seen := map[int64]string{}
	for i, f := range reflect.VisibleFields(reflect.TypeFor[broker.TrainerSettings]()) {
		v := reflect.ValueOf(one.broker()).Field(i).Int()
		if other, ok := seen[v]; v == 0 || ok {
			t.Errorf("no flag of its own of `trainer add` sets %s: %d, as %q", f.Name, v, other)
		}
		seen[v] = f.Name
		if reflect.ValueOf(new.settings(time.Hour)).Field(i).Int() == 0 && f.Name != "Weight" {
			t.Errorf("no flag of a worker sets %s", f.Name)
		}
	}
	if err := one.check(); err != nil {
		t.Error(err)
	}
	kept := trainerFlags{}
	if n := kept.settings(0).MaxRecordBytes; n != broker.AnyRecordBytes {
		t.Errorf("records that are kept for ever have a bound of %d bytes", n)
	}
	if n := kept.settings(time.Hour).MaxRecordBytes; n != 0 {
		t.Errorf("records have a bound of %d bytes, not the default", n)
	}
	one.maxRecordMB = 1<<30 + 1
	if err := one.check(); err == nil || !strings.Contains(err.Error(), "--max-record-mb") {
		t.Errorf("got %v", err)
	}
}

func TestDoctorNamesATrainerWithTooManyRecords(t *testing.T) {
	nats := testenv.StartNATS(t, "alpha", "beta")
	b := nats.Worker(t, "w1")
	for _, tid := range []string{"alpha", "beta"} {
		if _, err := b.Trainers.Open(t.Context(), tid); err != nil {
			t.Fatal(err)
		}
	}
	if f := recordsFinding(t.Context(), b, broker.RoleWorker, "w1"); f.err != nil || !strings.HasPrefix(f.ok, "2 trainers") {
		t.Errorf("got %+v", f)
	}
	if f := recordsOf("alpha", 11<<20, 10<<20); f == nil || !strings.Contains(f.Error(), "alpha has 11 MB of records, more than its bound of 10 MB") {
		t.Errorf("got %v", f)
	}
	if f := recordsFinding(t.Context(), nats.Trainer(t, "beta"), broker.RoleTrainer, "beta"); f.err != nil || !strings.HasPrefix(f.ok, "1 trainer") {
		t.Errorf("got %+v", f)
	}
}
