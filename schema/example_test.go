package schema_test

import (
	"encoding/json"
	"fmt"
	"log"
	"os"

	"github.com/turngate/turngate/schema"
)

// A message on the wire is a msgpack map, which Decode checks.
func ExampleDecode() {
	body, err := os.ReadFile("testdata/result.msgpack")
	if err != nil {
		log.Fatal(err)
	}
	var r schema.Result
	if err := schema.Decode(body, &r); err != nil {
		log.Fatal(err)
	}
	fmt.Println(r.ID, r.Status, *r.Reward, r.Fault.Code, r.Fault.Who)
	// Output: alpha-7 done 0.5 timeout agent
}

// A wrong field gives an error that names the field, the value and a valid form.
func ExampleValidate() {
	r := schema.Request{V: 1, ID: "alpha-1", Trainer: "alpha", Task: schema.Task{Name: "hello", Instruction: "Say hello."}}
	r.Agent.Name, r.Sandbox.Backend, r.Sandbox.Network = "mini", "local", "wifi"
	fmt.Println(schema.Validate(&r))
	// Output: sandbox.network: "wifi" is not valid: want one of none, allowlist, open
}

// A reply carries the data for training beside the message.
func ExampleEncode() {
	reply := schema.Reply{
		V: 1, Message: json.RawMessage(`{"role":"assistant","content":"ok"}`), FinishReason: "stop",
		CompletionIDs: schema.PackTokenIDs([]int32{7, 8}), Logprobs: schema.PackLogprobs([]float32{-0.5, -0.25}),
	}
	body, err := schema.Encode(&reply)
	if err != nil {
		log.Fatal(err)
	}
	var read schema.Reply
	fmt.Println(schema.Decode(body, &read), read.CompletionIDs.Unpack(), read.Logprobs.Unpack())
	// Output: <nil> [7 8] [-0.5 -0.25]
}
