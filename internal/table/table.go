// Package table writes training rows as Apache Parquet and Apache Arrow files.
package table

import (
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/turngate/turngate/trajectory"
)

// Bounds of a batch of rows, which is held in memory until it is written.
const (
	maxBatchRows   = 1024
	maxBatchTokens = 4 << 20 // 13 bytes each
)

// Writer writes a table of rows. Its columns have the names of the members of a
// row in JSON.
type Writer struct {
	columns *array.RecordBuilder
	out     batches
	rows    int
	tokens  int
}

// batches is a file of record batches.
type batches interface {
	Write(arrow.RecordBatch) error
	Close() error
}

// Parquet returns a writer of a Parquet file, compressed with zstd. Close must be
// called to complete the file. Close does not close out.
func Parquet(out io.Writer) (*Writer, error) {
	props := parquet.NewWriterProperties(parquet.WithCompression(compress.Codecs.Zstd), parquet.WithCreatedBy("turngate"))
	f, err := pqarrow.NewFileWriter(columns(), struct{ io.Writer }{out}, props, pqarrow.NewArrowWriterProperties(pqarrow.WithStoreSchema()))
	if err != nil {
		return nil, fmt.Errorf("write the Parquet file: %w", err)
	}
	return newWriter(f), nil
}

// Arrow returns a writer of a file in Arrow's IPC file format, which is also
// Feather version 2. Close must be called to complete the file. Close does not
// close out.
func Arrow(out io.Writer) (*Writer, error) {
	f, err := ipc.NewFileWriter(struct{ io.Writer }{out}, ipc.WithSchema(columns()), ipc.WithZstd())
	if err != nil {
		return nil, fmt.Errorf("write the Arrow file: %w", err)
	}
	return newWriter(f), nil
}

func newWriter(f batches) *Writer {
	return &Writer{columns: array.NewRecordBuilder(memory.DefaultAllocator, columns()), out: f}
}

func columns() *arrow.Schema {
	text, number := arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int32
	field := func(name string, t arrow.DataType) arrow.Field { return arrow.Field{Name: name, Type: t} }
	list := func(t arrow.DataType) arrow.DataType { return arrow.ListOfNonNullable(t) }
	version := arrow.StructOf(field("version", text), field("start", number), field("end", number))
	span := arrow.StructOf(field("call", number), field("role", text), field("gen", text), field("start", number), field("end", number),
		field("trained", arrow.FixedWidthTypes.Boolean), field("finish_reason", text), field("versions", list(version)))
	return arrow.NewSchema([]arrow.Field{
		field("rollout", text), field("attempt", number), field("group", text), field("index", number), field("task", text), field("row", number), field("role", text),
		{Name: "reward", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
		field("input_ids", list(number)), field("loss_mask", list(arrow.PrimitiveTypes.Int8)), field("logprobs", list(arrow.PrimitiveTypes.Float32)), field("versions", list(number)),
		field("calls", list(span)),
	}, nil)
}

// filler appends values to the columns of one row, or to the fields of one struct,
// in their order.
type filler struct {
	next func(i int) array.Builder
	at   int
}

func (f *filler) builder() array.Builder {
	f.at++
	return f.next(f.at - 1)
}

func (f *filler) text(s string) { f.builder().(*array.StringBuilder).Append(s) }
func (f *filler) number(n int)  { f.builder().(*array.Int32Builder).Append(int32(n)) }

func (f *filler) list() array.Builder {
	b := f.builder().(*array.ListBuilder)
	b.Append(true)
	return b.ValueBuilder()
}

// Add adds a row.
func (w *Writer) Add(r *trajectory.Row) error {
	f := filler{next: func(i int) array.Builder { return w.columns.Field(i) }}
	f.text(string(r.Rollout))
	f.number(r.Attempt)
	f.text(r.Group)
	f.number(r.Index)
	f.text(r.Task)
	f.number(r.Row)
	f.text(r.Role)
	if reward := f.builder().(*array.Float64Builder); r.Reward == nil {
		reward.AppendNull()
	} else {
		reward.Append(*r.Reward)
	}
	f.list().(*array.Int32Builder).AppendValues(r.InputIDs, nil)
	f.list().(*array.Int8Builder).AppendValues(r.LossMask, nil)
	f.list().(*array.Float32Builder).AppendValues(r.Logprobs, nil)
	f.list().(*array.Int32Builder).AppendValues(r.Versions, nil)
	calls := f.list().(*array.StructBuilder)
	for _, s := range r.Calls {
		calls.Append(true)
		c := filler{next: calls.FieldBuilder}
		c.number(s.Call)
		c.text(s.Role)
		c.text(s.Gen)
		c.number(s.Start)
		c.number(s.End)
		c.builder().(*array.BooleanBuilder).Append(s.Trained)
		c.text(s.FinishReason)
		versions := c.list().(*array.StructBuilder)
		for _, v := range s.Versions {
			versions.Append(true)
			f := filler{next: versions.FieldBuilder}
			f.text(v.Version)
			f.number(v.Start)
			f.number(v.End)
		}
	}
	w.rows++
	if w.tokens += len(r.InputIDs); w.rows >= maxBatchRows || w.tokens >= maxBatchTokens {
		return w.flush()
	}
	return nil
}

func (w *Writer) flush() error {
	batch := w.columns.NewRecordBatch()
	defer batch.Release()
	w.rows, w.tokens = 0, 0
	if err := w.out.Write(batch); err != nil {
		return fmt.Errorf("write %d rows: %w", batch.NumRows(), err)
	}
	return nil
}

// Close writes the last rows and completes the file.
func (w *Writer) Close() error {
	defer w.columns.Release()
	if w.rows > 0 {
		if err := w.flush(); err != nil {
			return err
		}
	}
	if err := w.out.Close(); err != nil {
		return fmt.Errorf("complete the table: %w", err)
	}
	return nil
}
