package agentclient

import (
	"runtime"
	"sync"
	"weak"

	"tangram.dev/operator/pkg/layout"
	tangramv1 "tangram.dev/proto/tangram/v1"
)

// layouts of all connections. The agents of a world tell the same one, and at 58 x 256 experts it is most of what is kept of them.
var layouts shared

// shared values by hash, for as long as anybody else holds them.
type shared struct {
	mu sync.Mutex
	of map[string]weak.Pointer[tangramv1.Layout]
}

// one is the layout that is kept under a hash: the given one if there is none. What is not as its hash says is given back and not kept, so
// that an agent which lies deceives nobody about what others tell.
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
	if s.of[hash].Value() == nil { // else it came again meanwhile
		delete(s.of, hash)
	}
}
