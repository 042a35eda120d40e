package table_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/parquet/file"

	"github.com/turngate/turngate/internal/table"
	"github.com/turngate/turngate/internal/testenv"
	"github.com/turngate/turngate/trajectory"
)

// rows returns the rows of all vectors, and more than one batch of them.
func rows(t *testing.T) []*trajectory.Row {
	t.Helper()
	files, err := filepath.Glob("../../trajectory/testdata/rows/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no vectors: %v", err)
	}
	var all []*trajectory.Row
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var v struct{ Rows []*trajectory.Row }
		if err := json.Unmarshal(data, &v); err != nil {
			t.Fatal(err)
		}
		all = append(all, v.Rows...)
	}
	return slices.Repeat(all, 1+1200/len(all))
}

type open func(*bytes.Buffer) (*table.Writer, error)

func write(t *testing.T, all []*trajectory.Row, f open) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := f(&out)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		if err := w.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func parquet(out *bytes.Buffer) (*table.Writer, error) { return table.Parquet(out) }
func arrow(out *bytes.Buffer) (*table.Writer, error)   { return table.Arrow(out) }

func TestFilesHaveAllRows(t *testing.T) {
	all := rows(t)
	for _, n := range []int{0, len(all)} {
		p, err := file.NewParquetReader(bytes.NewReader(write(t, all[:n], parquet)))
		if err != nil {
			t.Fatal(err)
		}
		if p.NumRows() != int64(n) {
			t.Errorf("the Parquet file has %d rows of %d", p.NumRows(), n)
		}
		a, err := ipc.NewFileReader(bytes.NewReader(write(t, all[:n], arrow)))
		if err != nil {
			t.Fatal(err)
		}
		got := 0
		for i := range a.NumRecords() {
			b, err := a.RecordBatchAt(i)
			if err != nil {
				t.Fatal(err)
			}
			got += int(b.NumRows())
			b.Release()
		}
		if got != n {
			t.Errorf("the Arrow file has %d rows of %d", got, n)
		}
		_ = a.Close()
	}
}

// pyarrow reads both files and gives the same rows as JSON does.
func TestPyarrowReadsThem(t *testing.T) {
	python := testenv.Python(t, "pyarrow")
	all := rows(t)
	dir := t.TempDir()
	lines, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"rows.json": lines, "rows.parquet": write(t, all, parquet), "rows.arrow": write(t, all, arrow)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), python, "-c", `
import json, struct
import pyarrow as pa, pyarrow.parquet as pq, pyarrow.ipc as ipc, pyarrow.feather as feather
single = lambda x: struct.unpack("f", struct.pack("f", x))[0]
want = json.load(open("rows.json"))
for row in want:
    row["logprobs"] = [single(x) for x in row["logprobs"]]
    for call in row["calls"]:
        call.setdefault("versions", [])
for name, got in (("parquet", pq.read_table("rows.parquet")), ("arrow", ipc.open_file("rows.arrow").read_all()), ("feather", feather.read_table("rows.arrow"))):
    got.validate(full=True)
    assert got.to_pylist() == want, name
    assert got.schema.field("input_ids").type.value_type == pa.int32() and got.schema.field("loss_mask").type.value_type == pa.int8(), got.schema
    assert got.schema.field("logprobs").type.value_type == pa.float32(), got.schema
    print(name, got.num_rows)
`)
	cmd.Dir = dir
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("pyarrow refuses them: %v\n%s", err, said)
	}
}
