package modelcall

import "github.com/turngate/turngate/internal/broker"

// ReadOver lets a server read bodies from the object store over other connections.
func (s *Server) ReadOver(b *broker.Broker) { s.store = b }
