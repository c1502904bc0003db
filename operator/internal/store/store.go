// Package store keeps the few records that must survive a driver: intents, permits, membership and transitions. All
// writes are compare-and-swap, so two drivers cannot both act.
package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// ErrConflict means that the record is not at the expected version, because another process wrote it.
var ErrConflict = errors.New("the record was changed by another process")

// Record is a value with its version. Version 0: the record does not exist yet.
type Record struct {
	Version uint64          `json:"version"`
	Value   json.RawMessage `json:"value"`
}

// Store keeps records by key. It is safe for concurrent use, also by several processes.
type Store interface {
	// Get returns version 0 and no error if the record does not exist.
	Get(ctx context.Context, key string) (Record, error)
	// CompareAndSwap writes the value if the record is at `version` (0: it does not exist) and returns the new version.
	// Otherwise it returns ErrConflict and writes nothing. The value is durable when CompareAndSwap returns.
	CompareAndSwap(ctx context.Context, key string, version uint64, value json.RawMessage) (uint64, error)
}

// Load reads a record into a typed value. It leaves the value unchanged if the record does not exist.
func Load(ctx context.Context, s Store, key string, into any) (uint64, error) {
	record, err := s.Get(ctx, key)
	if err != nil || record.Version == 0 {
		return 0, err
	}
	if err := json.Unmarshal(record.Value, into); err != nil {
		return 0, fmt.Errorf("store: record %q: %w", key, err)
	}
	return record.Version, nil
}

// Save writes a typed value by compare-and-swap.
func Save(ctx context.Context, s Store, key string, version uint64, value any) (uint64, error) {
	wire, err := json.Marshal(value)
	if err != nil {
		return 0, fmt.Errorf("store: record %q: %w", key, err)
	}
	return s.CompareAndSwap(ctx, key, version, wire)
}
