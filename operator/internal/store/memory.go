package store

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
)

// Memory is a store that lasts as long as its process. Its zero value is ready.
type Memory struct {
	mu      sync.Mutex
	records map[string]Record
}

// Get implements Store.
func (m *Memory) Get(_ context.Context, key string) (Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.records[key]
	r.Value = slices.Clone(r.Value)
	return r, nil
}

// CompareAndSwap implements Store.
func (m *Memory) CompareAndSwap(_ context.Context, key string, version uint64, value json.RawMessage) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if have := m.records[key].Version; have != version {
		return 0, fmt.Errorf("record %q is at version %d, expected %d: %w", key, have, version, ErrConflict)
	}
	if m.records == nil {
		m.records = map[string]Record{}
	}
	m.records[key] = Record{Version: version + 1, Value: slices.Clone(value)}
	return version + 1, nil
}
