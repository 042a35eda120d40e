package trajectory_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/klauspost/compress/zstd"

	"github.com/turngate/turngate/schema"
	"github.com/turngate/turngate/trajectory"
)

// A transcript of three calls of one conversation gives one row.
func ExampleRead() {
	transcript, result := recorded("testdata/rows/linear.json")
	rollout, err := trajectory.Read(bytes.NewReader(transcript), result, trajectory.Options{})
	if err != nil {
		log.Fatal(err)
	}
	for row := range rollout.Rows() {
		fmt.Println(row.Rollout, "reward", *row.Reward, "calls", len(row.Calls))
		fmt.Println(row.InputIDs)
		fmt.Println(row.LossMask)
	}
	// Output:
	// alpha-01 reward 1 calls 3
	// [1 2 3 10 11 4 5 12 6 13 14 15]
	// [0 0 0 1 1 0 0 1 0 1 1 1]
}

// After the agent has compacted its conversation, a second row begins.
func ExampleRollout_Rows() {
	transcript, result := recorded("testdata/rows/compaction.json")
	rollout, err := trajectory.Read(bytes.NewReader(transcript), result, trajectory.Options{})
	if err != nil {
		log.Fatal(err)
	}
	for row := range rollout.Rows() {
		fmt.Println("row", row.Row, "calls", len(row.Calls), "tokens", len(row.InputIDs))
	}
	for _, b := range rollout.Breaks {
		fmt.Println("call", b.Call, b.Reason)
	}
	// Output:
	// row 0 calls 3 tokens 9
	// row 1 calls 2 tokens 6
	// call 4 compaction
}

// recorded returns the transcript and the result of a vector.
func recorded(file string) ([]byte, *schema.Result) {
	var v struct {
		Lines  []json.RawMessage
		Result *schema.Result
	}
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &v)
	}
	if err != nil {
		log.Fatal(err)
	}
	var lines bytes.Buffer
	w, err := zstd.NewWriter(&lines)
	if err != nil {
		log.Fatal(err)
	}
	for _, line := range v.Lines {
		var one bytes.Buffer
		if err := json.Compact(&one, line); err != nil {
			log.Fatal(err)
		}
		if _, err := fmt.Fprintln(w, one.String()); err != nil {
			log.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		log.Fatal(err)
	}
	return lines.Bytes(), v.Result
}
