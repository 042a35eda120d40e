package record

import (
	"encoding/json"

	"github.com/rs/zerolog"
)

// maskedLog returns a logger for lines of a rollout. They reach the worker's log
// without the keys.
func maskedLog(s *secrets, to zerolog.Logger) zerolog.Logger {
	return zerolog.New(logMask{s, to}).Level(to.GetLevel())
}

// logMask passes log lines on. A logger does not show the writer that it has, so a
// line is read again.
type logMask struct {
	secrets *secrets
	to      zerolog.Logger
}

func (m logMask) Write(line []byte) (int, error) { return m.WriteLevel(zerolog.NoLevel, line) }

// WriteLevel implements zerolog.LevelWriter.
func (m logMask) WriteLevel(level zerolog.Level, line []byte) (int, error) {
	var fields map[string]json.RawMessage
	masked, _ := m.secrets.Bytes(line)
	if err := json.Unmarshal(masked, &fields); err != nil {
		return 0, err
	}
	var message string
	_ = json.Unmarshal(fields[zerolog.MessageFieldName], &message) // none: empty
	delete(fields, zerolog.MessageFieldName)
	delete(fields, zerolog.LevelFieldName)
	rest := make(map[string]any, len(fields))
	for name, value := range fields {
		rest[name] = value
	}
	m.to.WithLevel(level).Fields(rest).Msg(message)
	return len(line), nil
}
