package gate

import (
	"github.com/turngate/turngate/internal/gate/dialect"
	"github.com/turngate/turngate/internal/gate/dialect/anthropic"
	"github.com/turngate/turngate/internal/gate/dialect/chat"
	"github.com/turngate/turngate/internal/gate/dialect/gemini"
	"github.com/turngate/turngate/internal/gate/dialect/responses"
)

// Dialects returns all dialects.
func Dialects() []dialect.Dialect {
	return []dialect.Dialect{
		chat.Dialect{},
		responses.Dialect{},
		anthropic.Dialect{},
		gemini.Dialect{},
	}
}
