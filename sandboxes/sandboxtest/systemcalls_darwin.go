package sandboxtest

import "testing"

const noNumbers = "SKIPPED, since only a test on Linux knows the numbers of its system calls"

func (s *suite) systemCalls(t *testing.T) { t.Skip(noNumbers) }

func (s *suite) hostilePrograms(t *testing.T) { t.Skip(noNumbers) }
