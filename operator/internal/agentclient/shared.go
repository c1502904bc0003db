package agentclient

import (
	"runtime"
	"sync"
	"weak"

	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// layouts of all connections. All agents of a world report the same layout, which is most of the data that is kept of
// them (58 x 256 experts).
var layouts shared

// shared values by hash, for as long as another reference exists.
type shared struct {
	mu sync.Mutex
	of map[string]weak.Pointer[tangramv1.Layout]
}

// one returns the kept layout of a hash, else it keeps the given one. A layout with another hash is returned and not
// kept, so that a faulty agent cannot corrupt the reports of others.
func (s *shared) one(hash string, l *tangramv1.Layout) *tangramv1.Layout {
	s.mu.Lock()
	kept := s.of[hash].Value()
	s.mu.Unlock()
	if kept != nil {
		return kept
	}
	if is, err := layout.Hash(l); err != nil || string(is) != hash {
		return l
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if kept := s.of[hash].Value(); kept != nil {
		return kept
	}
	if s.of == nil {
		s.of = map[string]weak.Pointer[tangramv1.Layout]{}
	}
	s.of[hash] = weak.Make(l)
	runtime.AddCleanup(l, s.forget, hash)
	return l
}

func (s *shared) forget(hash string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[hash].Value() == nil { // else it was added again meanwhile
		delete(s.of, hash)
	}
}
