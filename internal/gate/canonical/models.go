package canonical

import (
	"fmt"

	"github.com/turngate/turngate/internal/rawjson"
)

// ModelsRoute is the route of the list of models in OpenAI's APIs.
const ModelsRoute = "GET /v1/models"

// Models returns the list of the only model in the form of OpenAI's APIs.
func Models(name string) []byte {
	return fmt.Appendf(nil, `{"object":"list","data":[%s]}`, Model(name))
}

// Model returns the description of the model in the form of OpenAI's APIs.
func Model(name string) []byte {
	return fmt.Appendf(nil, `{"id":%s,"object":"model","created":0,"owned_by":"turngate"}`, rawjson.Quote(name))
}

// Error returns an error in the form of OpenAI's APIs.
func Error(code, message string) []byte {
	b := append([]byte(nil), `{"error":{"message":`...)
	b = rawjson.AppendString(b, message)
	b = append(b, `,"type":`...)
	b = rawjson.AppendString(b, code)
	b = append(b, `,"param":null,"code":`...)
	b = rawjson.AppendString(b, code)
	return append(b, `}}`...)
}
